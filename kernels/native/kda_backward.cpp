// Gradients of Kimi Delta Attention, chunk by chunk from the last one on; `kda_chunk.h` has the equations. With d for the
// gradient of what follows it, all of one chunk:
//   dY = scale P^T do + k= dS';  dU = beta dY - A^T .. solved from the last row on;  dv = dR = dU;  d(k+ S) = -dR
//   [d(k+ S); d(q+ S)] = L, against Y^T the gradients of A and P; dbeta = dY . U;  dS = diag(e^{Gn}) dS' + [k+; q+]^T L
#include "kda_tiles.h"

// gradient of beta U = Y: through (I + A)^T from the last row on; dY becomes that of U without beta, and minus its product with
// beta is `negative`
template <int NV, int ROWS>
static inline void solve_back(int n, const float* A, const float* beta, float* dY, float* negative) {
    constexpr int ld = NV * W;
    for (int j = 0; j < NV; j++) {
        vec y[C];
        each<ROWS>(0, n, [&](int i) { y[i] = load(dY + i * ld + j * W); });
        each<ROWS>(0, n, [&](int x) {
            const int b = (ROWS ? ROWS : n) - 1 - x;
            const vec less = y[b] * splat(-beta[b]);
            store(dY + b * ld + j * W, y[b]);
            store(negative + b * ld + j * W, less);
            each<ROWS>(0, ROWS ? ROWS : b, [&](int a) {
                if (a < b) y[a] = add_product(splat(A[b * C + a]), less, y[a]);
            });
        });
    }
}

struct Gradients {
    const int K, V;
    Room memory;
    // gradients of A and P, then of k+ and q+, [C, K] each, of k- and of k=; what is made in columns first; sums a row
    float *dA, *dP, *dkp, *dqp, *dkm, *dke, *columns, *carry, *products, *sums;
    // of a panel: Y, its columns; gradients of k+ S and q+ S and their columns; gradient of Y
    float *Y, *YT, *left, *leftT, *dY;

    Gradients(int K_, int V_) : K(K_), V(V_) {
        float* at = memory.hold(2 * C * C + 4 * C * K + 3 * C * K + K + K * W + C * W + 8 * C * PANEL);
        for (float** p : {&dA, &dP}) *p = at, at += C * C;
        for (float** p : {&dkp, &dqp, &dkm, &dke}) *p = at, at += C * K;
        columns = at, at += 3 * C * K;
        carry = at, at += K;
        products = at, at += K * W;
        sums = at, at += C * W;
        Y = at, at += C * PANEL;
        YT = at, at += C * PANEL;
        left = at, at += 2 * C * PANEL;
        leftT = at, at += 2 * C * PANEL;
        dY = at;
    }

    void begin() {
        std::fill(dA, dA + 2 * C * C, 0.0f);
        std::fill(columns, columns + 3 * C * K, 0.0f);
        std::fill(products, products + K * W, 0.0f);
        std::fill(sums, sums + C * W, 0.0f);
    }

    // one panel of NV * W value channels: S before the chunk, dS after it, which becomes the one before it; U as the chunk had
    // it; d_v is written
    template <int NV, class T, class O>
    void panel(const Chunk& chunk, O& operands, Ahead& ahead, const float* S, float* dS, const float* U, const T* d_o, T* d_v, int64_t stride, float scale) {
        constexpr int w = NV * W;
        constexpr bool tiled = NV == 2 && !std::is_same_v<O, Nothing>;
        const int n = chunk.n;
        float *const negative = left, *const dO = left + C * w;
        for (int i = 0; i < C; i++)
            for (int j = 0; j < w; j += W) {
                store(Y + i * w + j, i < n ? load(U + i * w + j) * chunk.beta[i] : vec{});
                store(dO + i * w + j, i < n ? load(d_o + i * stride + j) * scale : vec{});
                if (i >= n) store(negative + i * w + j, vec{});
            }
        product<NV, 1, ZERO>(n, n, chunk.P, 1, C, dO, w, dY, w);
        if constexpr (tiled) {
            std::fill(dY + n * w, dY + C * w, 0.0f);
            operands.gradient_of_Y(chunk, S, dS, products, dY, ahead);
        } else {
            product<NV, 0, ADD>(n, K, chunk.ke, K, 1, dS, w, dY, w);
        }
        if (n == C)
            solve_back<NV, C>(C, chunk.A, chunk.beta, dY, negative);
        else
            solve_back<NV, 0>(n, chunk.A, chunk.beta, dY, negative);
        for (int i = 0; i < n; i++) {
            vec sum = load(sums + i * W);
            for (int j = 0; j < w; j += W) {
                store(d_v + i * stride + j, -load(negative + i * w + j));
                sum = add_product(load(dY + i * w + j), load(U + i * w + j), sum);
            }
            store(sums + i * W, sum);
        }
        if constexpr (tiled) return operands.rest(S, dS, Y, left, dA, columns);
        turn_rows(Y, w, w, YT, C);
        turn_rows(negative, w, w, leftT, 2 * C);
        turn_rows(dO, w, w, leftT + C, 2 * C);
        constexpr int tile = C / W;
        product<tile, w, ADD, w>(2 * C, w, left, w, 1, YT, C, dA, C);
        // products with rows of S and dS come out in columns; so the states are read as they lie
        product<tile, w, ADD, w>(K, w, dS, w, 1, YT, C, columns, C, nullptr, nullptr, &ahead);
        product<2 * tile, w, ADD, w>(K, w, S, w, 1, leftT, 2 * C, columns + C * K, 2 * C, nullptr, nullptr, &ahead);
        for (int c = 0; c < K; c++) {
            vec sum = load(products + c * W);
            for (int j = 0; j < w; j += W) sum = add_product(load(S + c * w + j), load(dS + c * w + j), sum);
            store(products + c * W, sum);
        }
        product<NV, 1, DECAY, 2 * C>(K, 2 * C, chunk.kp, 1, K, left, w, dS, w, dS, chunk.last, &ahead);
    }

    // what needs all panels: gradients of keys, queries and decays of the chunk's rows
    template <class T>
    void rows(const Chunk& chunk, T* d_q, T* d_k, float* d_g, float* d_beta, int64_t H) {
        const int n = chunk.n;
        for (int a = 0; a < n; a++) d_beta[a * H] = total(load(sums + a * W));
        for (int a = 0; a < C; a++)
            for (int b = a; b < C; b++) {
                dA[a * C + b] = 0;
                if (b > a) dP[a * C + b] = 0;
            }
        turn_columns(columns, C, K, dke, K);
        turn_columns(columns + C * K, 2 * C, K, dkp, K);
        turn_columns(columns + C * K + C, 2 * C, K, dqp, K);
        panels(K, [&]<int NV>(int c) {
            product<NV, C, ADD, C>(2 * C, C, dA, C, 1, chunk.km + c, K, dkp + c, K);
            product<NV, 1, ZERO, 2 * C>(C, 2 * C, dA, 1, C, chunk.kp + c, K, dkm + c, K);
        });
        // gradient of the running sum G, from the last row on; that of g is its sum over later rows
        for (int c = 0; c < K; c++) carry[c] = total(load(products + c * W)) * chunk.last[c];
        for (int c = 0; c < K; c += W) {
            vec sum = load(carry + c);
            for (int a = 0; a < n; a++) sum = add_product(load(dke + a * K + c), load(chunk.ke + a * K + c), sum);
            store(carry + c, sum);
        }
        for (int a = n - 1; a >= 0; a--) {
            const int row = a * K;
            const int64_t out = a * H * K;
            for (int c = 0; c < K; c += W) {
                const vec high = load(chunk.rise + row + c), low = load(chunk.fall + row + c);
                const vec Q = load(dqp + row + c), P = load(dkp + row + c), M = load(dkm + row + c), L = load(dke + row + c);
                store(d_q + out + c, Q * high);
                store(d_k + out + c, P * high + add_product(L, load(chunk.last + c), M) * low);
                const vec more = add_product(Q, load(chunk.qp + row + c), P * load(chunk.kp + row + c));
                const vec less = add_product(M, load(chunk.km + row + c), L * load(chunk.ke + row + c));
                const vec sum = load(carry + c) + (more - less);
                store(carry + c, sum);
                store(d_g + out + c, sum);
            }
        }
    }
};

// initial, d_final, d_initial [N, H, K, V] or null; kept as `kda_forward` left it. States are made again from
// there, a segment at a time
template <class T, bool TILES>
static void backward(const Head<T>& all, const int* cu, int streams, float scale, const float* initial, const float* kept,
                     const T* d_o, const float* d_final, T* d_q, T* d_k, T* d_v, float* d_g,
                     float* d_beta, float* d_initial, int threads) {
    const int64_t H = all.H, K = all.K, V = all.V, size = K * V;
    const std::vector<int64_t> before = kept_before(cu, streams);
    const std::vector<int> tasks = longest_first(cu, streams, (int)H);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        Chunk chunk((int)K);
        Gradients grads((int)K, (int)V);
        OperandsOf<TILES> operands((int)K);
        Room room, states, solved;
        float *const dS = room.hold(size + C * PANEL + K * PANEL), *const Y = dS + size, *const unread = Y + C * PANEL;
        std::vector<int64_t> cuts, segments;  // first rows of chunks; first chunks of segments
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < streams * (int)H; task++) {
            const int64_t stream = tasks[task] / H, h = tasks[task] % H, begin = cu[stream], end = cu[stream + 1];
            const int64_t own = (stream * H + h) * size;
            cuts.assign(1, begin), segments.assign(1, 0);
            for (int64_t t = begin; t < end; cuts.push_back(t)) {
                if (t - begin >= (int64_t)segments.size() * SEGMENT) segments.push_back((int64_t)cuts.size() - 1);
                t += chunk.fit(all.from(t, h).g, H * K, end - t);
            }
            const int64_t chunks = (int64_t)cuts.size() - 1;
            segments.push_back(chunks);
            int64_t most = 0;
            for (size_t s = 1; s < segments.size(); s++) most = std::max(most, segments[s] - segments[s - 1]);
            states.hold(most * size), solved.hold(most * C * V);
            if (d_final)
                pack(d_final + own, (int)K, (int)V, RAISE, dS);
            else
                std::fill(dS, dS + size, 0.0f);
            for (int64_t segment = (int64_t)segments.size() - 2; segment >= 0; segment--) {
                const int64_t first = segments[segment], behind = segments[segment + 1];
                if (first == behind) break;  // a stream without rows
                if (segment > 0)
                    std::memcpy(states.at, kept + ((before[stream] + segment - 1) * H + h) * size, size * sizeof(float));
                else if (initial)
                    pack(initial + own, (int)K, (int)V, LOWER, states.at);
                else
                    std::fill(states.at, states.at + size, 0.0f);
                for (int64_t i = first; i < behind; i++) {
                    const Head<T> at = all.from(cuts[i], h);
                    const int n = (int)(cuts[i + 1] - cuts[i]);
                    if (i < behind - 1)
                        chunk.read<KEYS>(at, n);
                    else
                        chunk.read<GRADIENTS>(at, n);
                    if constexpr (TILES) operands.enter(chunk, false);
                    Ahead ahead;
                    const Head<T> behind_it = all.from(cuts[i + 1], h);
                    ahead.add(behind_it.k, H * K, (int)K, false), ahead.add(behind_it.g, H * K, (int)K, false);
                    ahead.add(behind_it.v, H * V, (int)V, false);
                    ahead.spread((int)((V + PANEL - 1) / PANEL * (TILES ? K / 16 : (K + C) / 8)));
                    panels((int)V, [&]<int NV>(int c) {
                        constexpr int w = NV * W;
                        const float* S = states.at + (i - first) * size + c * K;
                        float *const U = solved.at + (i - first) * C * V + c * C, *const next = (float*)S + size;
                        if constexpr (TILES && NV == 2)
                            operands.read(chunk, S, i < behind - 1 ? next : unread, U, false, ahead);
                        else
                            product<NV, 0, ZERO>(n, (int)K, chunk.kp, K, 1, S, w, U, w, nullptr, nullptr, &ahead);
                        solve<NV>(chunk, at.v + c, H * V, U, Y);
                        if (i == behind - 1) return;
                        if constexpr (TILES && NV == 2) {
                            std::fill(Y + n * w, Y + C * w, 0.0f);
                            operands.advance(Y, next);
                        } else {
                            (n == C ? product<NV, 1, DECAY, C> : product<NV, 1, DECAY>)((int)K, n, chunk.ke, 1, K, Y, w, next, w,
                                                                                        S, chunk.last, &ahead);
                        }
                    });
                }
                for (int64_t i = behind - 1; i >= first; i--) {
                    const Head<T> at = all.from(cuts[i], h);
                    const int64_t row = cuts[i] * H + h;
                    if (i < behind - 1) chunk.read<GRADIENTS>(at, (int)(cuts[i + 1] - cuts[i]));
                    Ahead ahead;
                    const Head<T> before_it = all.from(cuts[i] - C, h);
                    const int64_t up = row - C * H;
                    for (const T* rows : {before_it.q, before_it.k}) ahead.add(rows, H * K, (int)K, false);
                    ahead.add(before_it.g, H * K, (int)K, false);
                    ahead.add(d_o + up * V, H * V, (int)V, false);
                    ahead.add(d_q + row * K, H * K, (int)K, true), ahead.add(d_k + row * K, H * K, (int)K, true);
                    ahead.add(d_g + row * K, H * K, (int)K, true);
                    ahead.add(d_v + up * V, H * V, (int)V, true);
                    ahead.spread((int)((V + PANEL - 1) / PANEL * K * (TILES ? 1 : 5) / 16));
                    if constexpr (TILES) operands.enter_back(chunk);
                    grads.begin();
                    panels((int)V, [&]<int NV>(int c) {
                        grads.template panel<NV>(chunk, operands, ahead, states.at + (i - first) * size + c * K, dS + c * K,
                                                 solved.at + (i - first) * C * V + c * C, d_o + row * V + c, d_v + row * V + c,
                                                 H * V, scale);
                    });
                    grads.rows(chunk, d_q + row * K, d_k + row * K, d_g + row * K, d_beta + row, H);
                }
            }
            if (d_initial) unpack(dS, (int)K, (int)V, LOWER, d_initial + own);
        }
    }
}

template <class T, bool TILES = false>
static void run(void* q, void* k, void* v, float* g, float* beta, int* cu, int streams, int H, int K, int V, float scale,
                float* initial, float* kept, void* d_o, float* d_final, void* d_q, void* d_k, void* d_v, float* d_g,
                float* d_beta, float* d_initial, int threads) {
    backward<T, TILES>(Head<T>{(T*)q, (T*)k, (T*)v, g, beta, H, K, V}, cu, streams, scale, initial, kept, (T*)d_o, d_final,
                       (T*)d_q, (T*)d_k, (T*)d_v, d_g, d_beta, d_initial, threads);
}

// form: as in `kda_forward`
EXPORT void kda_backward(int form, void* q, void* k, void* v, float* g, float* beta, int* cu, int streams, int H, int K,
                         int V, float scale, float* initial, float* kept, void* d_o, float* d_final, void* d_q, void* d_k,
                         void* d_v, float* d_g, float* d_beta, float* d_initial, int threads) {
    auto* work = form == 0 ? run<float> : run<bf16>;
#ifdef KDA_TILES
    if (form == 2) work = run<bf16, true>;
#endif
    work(q, k, v, g, beta, cu, streams, H, K, V, scale, initial, kept, d_o, d_final, d_q, d_k, d_v, d_g, d_beta, d_initial,
         threads);
}
