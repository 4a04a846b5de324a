// Kimi Delta Attention in chunks of at most 16 tokens, for any log decay: a chunk ends early where the decay over it would
// leave float32. Where it ends depends on no later row, so no later row changes a bit of an earlier result.
// Source of the chunk form: Kimi Linear report (arXiv:2510.26692); the bound makes e^{-G} of a chunk fit float32.
// Per stream and head, with G the running sum of g inside a chunk, E = e^G, k+ = k E, q+ = q E, k- = k / E, k= = k e^{Gn - G}:
//   R = v - k+ S;   (I + A) Y = beta R,  A_ij = beta_i k+_i . k-_j  (i > j)
//   o = scale (q+ S + P Y),  P_ij = q+_i . k-_j  (i >= j);   S' = diag(e^{Gn}) S + k=^T Y
// All tiles of a head stay in the first-level cache. Legend: K key width, V value width, C rows of a chunk, n its length.
#include "vector.h"
#include <memory>

constexpr int C = 16;
constexpr float LOWEST = -80.0f;  // e^80 and what it multiplies fit float32
// Decayed rows are held 2^58 times as large, inverse ones and states as much smaller: e^-80 of a row would be taken for zero
constexpr float RAISE = 0x1p58f, LOWER = 0x1p-58f;
constexpr float GONE = -20.0f;    // 2e-9 of a state is below the rounding of the rest; stronger decays are taken for this one

enum Begin { ZERO, ADD, DECAY };  // a product begins from nothing, from c, or from `from` times a number a row

// c[MR, NV * W] = begin + a b with a(i, k) = a[i * ra + k * ca]; rows of b are ldb apart, those of c and `from` ldc. Every
// number is one chain of additions, the same however many rows there are.
template <int MR, int NV, Begin B>
static inline void block(int depth, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc,
                         const float* from, const float* decay) {
    vec sum[MR][NV];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) {
            if (B == ZERO) sum[i][j] = vec{};
            if (B == ADD) sum[i][j] = load(c + i * ldc + j * W);
            if (B == DECAY) sum[i][j] = load(from + i * ldc + j * W) * splat(decay[i]);
        }
    for (int k = 0; k < depth; k++) {
        vec row[NV];
        for (int j = 0; j < NV; j++) row[j] = load(b + k * ldb + j * W);
        for (int i = 0; i < MR; i++) {
            const vec x = splat(a[i * ra + k * ca]);
            for (int j = 0; j < NV; j++) sum[i][j] = add_product(x, row[j], sum[i][j]);
        }
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) store(c + i * ldc + j * W, sum[i][j]);
}

template <int MR, int NV, Begin B>
static void columns(int m, int depth, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc,
                    const float* from, const float* decay) {
    int i = 0;
    auto at = [&](const float* x, int stride) { return x ? x + (int64_t)i * stride : x; };
    for (; i + MR <= m; i += MR)
        block<MR, NV, B>(depth, a + i * ra, ra, ca, b, ldb, c + (int64_t)i * ldc, ldc, at(from, ldc), at(decay, 1));
    for (; i + 4 <= m; i += 4)
        block<4, NV, B>(depth, a + i * ra, ra, ca, b, ldb, c + (int64_t)i * ldc, ldc, at(from, ldc), at(decay, 1));
    for (; i < m; i++)
        block<1, NV, B>(depth, a + i * ra, ra, ca, b, ldb, c + (int64_t)i * ldc, ldc, at(from, ldc), at(decay, 1));
}

// width must be a multiple of 16
template <Begin B>
static void product(int m, int width, int depth, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc,
                    const float* from = nullptr, const float* decay = nullptr) {
    int j = 0;
    auto at = [&] { return from ? from + j : from; };
    for (; j + 4 * W <= width; j += 4 * W) columns<4, 4, B>(m, depth, a, ra, ca, b + j, ldb, c + j, ldc, at(), decay);
    for (; j + 2 * W <= width; j += 2 * W) columns<8, 2, B>(m, depth, a, ra, ca, b + j, ldb, c + j, ldc, at(), decay);
    for (; j < width; j += W) columns<16, 1, B>(m, depth, a, ra, ca, b + j, ldb, c + j, ldc, at(), decay);
}

template <class T>
static void load_rows(const T* src, int64_t stride, int n, int width, float* out) {
    for (int i = 0; i < n; i++) {
        const T* s = src + i * stride;
        float* o = out + i * width;
#pragma omp simd
        for (int c = 0; c < width; c++) o[c] = up(s[c]);
    }
}

// [n, width] -> columns of out, whose rows are `apart`; C columns, missing ones zero
static void transpose(const float* src, int n, int width, float* out, int apart) {
    if (n == C) {
        for (int i = 0; i < C; i += W)
            for (int c = 0; c < width; c += W) turn(src + i * width + c, width, out + c * apart + i, apart);
        return;
    }
    for (int i = 0; i < C; i++)
        for (int c = 0; c < width; c++) out[c * apart + i] = i < n ? src[i * width + c] : 0.0f;
}

// C columns of src, whose rows are `apart`, -> [C, width]
static void transpose_back(const float* src, int apart, int width, float* out) {
    for (int i = 0; i < C; i += W)
        for (int c = 0; c < width; c += W) turn(src + c * apart + i, apart, out + i * width + c, width);
}

static void scaled(const float* from, int64_t size, float by, float* to) {
#pragma omp simd
    for (int64_t i = 0; i < size; i++) to[i] = from[i] * by;
}

// ask for the rows of another chunk while this one is computed; it may lie outside, for nothing is read
template <class T>
static inline void fetch(const T* src, int64_t stride, int width) {
    for (int i = 0; i < C; i++)
        for (int c = 0; c < width; c += 64 / (int)sizeof(T)) __builtin_prefetch(src + i * stride + c);
}

// everything a chunk computes before it meets the state
struct Chunk {
    int K, V, n = 0;
    std::vector<float> q, k, v, E, rows, km, ke, kmT, tiles, beta, outs, Y;
    // k+ and directly behind it q+, which meet the same matrices; A and P, what both make of k-, and of the state. A holds
    // k+_i . k-_j without beta; P and A are [C, C] with exact zeros where the mask is
    float *kp, *qp, *A, *P, *R, *O;

    Chunk(int K_, int V_)
        : K(K_), V(V_), q(C * K_), k(C * K_), v(C * V_), E(C * K_), rows(2 * C * K_), km(C * K_), ke(C * K_), kmT(K_ * C),
          tiles(2 * C * C), beta(C), outs(2 * C * V_), Y(C * V_) {
        place();
    }

    void place() {
        kp = rows.data(), qp = kp + n * K;
        A = tiles.data(), P = A + n * C;
        R = outs.data(), O = R + n * V;
    }

    const float* last() const { return E.data() + (n - 1) * K; }

    // rows [0, count); without queries what only they need is left undone. ahead: where the chunk after this one begins
    template <class T>
    void read(const T* Q, const T* Kk, const T* Vv, const float* g, const float* b, int64_t key_stride,
              int64_t value_stride, int64_t heads, int count, bool queries, int ahead) {
        n = count;
        place();
        fetch(Q + ahead * key_stride, key_stride, K);
        fetch(Kk + ahead * key_stride, key_stride, K);
        fetch(Vv + ahead * value_stride, value_stride, V);
        fetch(g + ahead * key_stride, key_stride, K);
        if (queries) load_rows(Q, key_stride, n, K, q.data());
        load_rows(Kk, key_stride, n, K, k.data());
        load_rows(Vv, value_stride, n, V, v.data());
        float* const sum = kmT.data();  // scratch until it is filled
        std::fill(sum, sum + K, 0.0f);
        for (int i = 0; i < n; i++) {
            const float* gi = g + i * key_stride;
            float *e = E.data() + i * K, *s = sum;
#pragma omp simd
            for (int c = 0; c < K; c++) {
                s[c] += std::max(gi[c], GONE);
                e[c] = fast_exp(s[c]);
            }
            beta[i] = b[i * heads];
        }
        within(queries);
        for (int i = 0; i < n; i++)
            for (int j = i; j < C; j++) {
                A[i * C + j] = 0;
                if (j > i) P[i * C + j] = 0;
            }
    }

    void within(bool queries) {
        const float* last = E.data() + (n - 1) * K;
        for (int i = 0; i < n; i++) {
            const int at = i * K;
#pragma omp simd
            for (int c = 0; c < K; c++) {
                const float e = E[at + c] * RAISE, inverse = 1.0f / e;
                kp[at + c] = k[at + c] * e;
                km[at + c] = k[at + c] * inverse;
                ke[at + c] = k[at + c] * (last[c] * inverse);
            }
        }
        if (queries) {
#pragma omp simd
            for (int c = 0; c < n * K; c++) qp[c] = q[c] * (E[c] * RAISE);
        }
        transpose(km.data(), n, K, kmT.data(), C);
        product<ZERO>(queries ? 2 * n : n, C, K, kp, K, 1, kmT.data(), C, A, C);
    }

    // R and Y from the incoming state [K, V], and if asked for O = q+ S
    void solve(const float* S, bool read_too) {
        product<ZERO>(read_too ? 2 * n : n, V, K, kp, K, 1, S, V, R, V);
        for (int i = 0; i < n; i++) {
            float *r = R + i * V, *y = Y.data() + i * V;
            const float* vi = v.data() + i * V;
#pragma omp simd
            for (int c = 0; c < V; c++) {
                r[c] = vi[c] - r[c];
                y[c] = r[c];
            }
            for (int j = 0; j < i; j++) {
                const float a = A[i * C + j], *yj = Y.data() + j * V;
#pragma omp simd
                for (int c = 0; c < V; c++) y[c] -= a * yj[c];
            }
            const float b = beta[i];
#pragma omp simd
            for (int c = 0; c < V; c++) y[c] *= b;
        }
    }

    void advance(const float* S, float* next) const {  // [K, V]; they may be the same
        product<DECAY>(K, V, n, ke.data(), 1, K, Y.data(), V, next, V, S, last());
    }
};

// rows at the beginning of `left` ones, at most C and at least four if there are, over which no channel decays below LOWEST
static int rows_that_fit(const float* g, int64_t stride, int K, int64_t left, float* sum) {
    const int most = (int)std::min<int64_t>(C, left);
    auto low = [&] {
        float found = 0;
#pragma omp simd reduction(min : found)
        for (int c = 0; c < K; c++) found = std::min(found, sum[c]);
        return found;
    };
    // decays only add up, so the last sum decides nearly always
    for (const bool slowly : {false, true}) {
        std::fill(sum, sum + K, 0.0f);
        for (int i = 0; i < most; i++) {
            const float* gi = g + i * stride;
#pragma omp simd
            for (int c = 0; c < K; c++) sum[c] += std::max(gi[c], GONE);
            if (slowly && low() < LOWEST) return i;
        }
        if (low() >= LOWEST) break;
    }
    return most;
}

// q, k, g [T, H, K]; v, o [T, H, V]; beta [T, H]; cu [N + 1]; states [N, H, K, V] or null
template <class T>
static void forward(const T* q, const T* k, const T* v, const float* g, const float* beta, const int* cu, int streams,
                    int H, int K, int V, float scale, const float* initial, float* final, T* o, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        Chunk chunk(K, V);
        std::vector<float> S(K * V), sum(K);
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < streams * H; task++) {
            const int64_t stream = task / H, h = task % H, size = (int64_t)K * V;
            if (initial)
                scaled(initial + (stream * H + h) * size, size, LOWER, S.data());
            else
                std::fill(S.begin(), S.end(), 0.0f);
            int n;
            for (int64_t t = cu[stream]; t < cu[stream + 1]; t += n) {
                const int64_t at = t * H + h;
                n = rows_that_fit(g + at * K, (int64_t)H * K, K, cu[stream + 1] - t, sum.data());
                chunk.read(q + at * K, k + at * K, v + at * V, g + at * K, beta + at, (int64_t)H * K, (int64_t)H * V, H, n,
                           true, n);
                chunk.solve(S.data(), true);
                product<ADD>(n, V, n, chunk.P, C, 1, chunk.Y.data(), V, chunk.O, V);
                for (int i = 0; i < n; i++) {
                    T* row = o + (at + (int64_t)i * H) * V;
                    const float* from = chunk.O + i * V;
#pragma omp simd
                    for (int c = 0; c < V; c++) row[c] = down<T>(from[c] * scale);
                }
                chunk.advance(S.data(), S.data());
            }
            if (final) scaled(S.data(), size, RAISE, final + (stream * H + h) * size);
        }
    }
}

// States are kept once a segment of so many chunks, and made again inside the segment at hand: memory does not grow with T
// beyond one state in SEGMENT chunks.
constexpr int SEGMENT = 256;

// memory that is not filled before it is written
struct Room {
    std::unique_ptr<float[]> memory;
    int64_t size = 0;
    void hold(int64_t wanted) {
        if (wanted > size) memory = std::make_unique_for_overwrite<float[]>(size = wanted);
    }
    float* data() { return memory.get(); }
};

// initial, d_final, d_initial [N, H, K, V] or null
template <class T>
static void backward(const T* q, const T* k, const T* v, const float* g, const float* beta, const int* cu, int streams,
                     int H, int K, int V, float scale, const float* initial, const T* d_o, const float* d_final, T* d_q,
                     T* d_k, T* d_v, float* d_g, float* d_beta, float* d_initial, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        Chunk chunk(K, V);
        const int64_t size = (int64_t)K * V;
        Room kept, states, solved;
        std::vector<float> S(size), dS(size), left(2 * C * V), dY(C * V), YT(V * C), dP(C * C), dA(C * C);
        std::vector<float> leftT(V * 2 * C), turned(K * 2 * C), dqp(C * K), dkp(C * K), dkm(C * K), dke(C * K), carry(K);
        std::vector<int64_t> cuts;
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < streams * H; task++) {
            const int64_t stream = task / H, h = task % H, begin = cu[stream], end = cu[stream + 1];
            const int64_t own = (stream * H + h) * size;
            cuts.assign(1, begin);
            for (int64_t t = begin; t < end; cuts.push_back(t))
                t += rows_that_fit(g + (t * H + h) * K, (int64_t)H * K, K, end - t, carry.data());
            const int64_t chunks = (int64_t)cuts.size() - 1, segments = (chunks + SEGMENT - 1) / SEGMENT;
            auto enter = [&](int64_t i, bool queries, int ahead) {
                const int64_t at = cuts[i] * H + h;
                chunk.read(q + at * K, k + at * K, v + at * V, g + at * K, beta + at, (int64_t)H * K, (int64_t)H * V, H,
                           (int)(cuts[i + 1] - cuts[i]), queries, ahead);
                return at;
            };
            if (initial)
                scaled(initial + own, size, LOWER, S.data());
            else
                std::fill(S.begin(), S.end(), 0.0f);
            kept.hold(segments * size);
            const int64_t most = std::min<int64_t>(chunks, SEGMENT);
            states.hold(most * size), solved.hold(most * 2 * C * V);
            for (int64_t i = 0; i < chunks; i++) {
                if (i % SEGMENT == 0) std::memcpy(kept.data() + i / SEGMENT * size, S.data(), size * sizeof(float));
                if (i >= (segments - 1) * SEGMENT) break;  // the last segment's are made below
                enter(i, false, C);
                chunk.solve(S.data(), false);
                chunk.advance(S.data(), S.data());
            }
            if (d_final)
                scaled(d_final + own, size, RAISE, dS.data());
            else
                std::fill(dS.begin(), dS.end(), 0.0f);
            for (int64_t segment = segments - 1; segment >= 0; segment--) {
                const int64_t first = segment * SEGMENT, last_chunk = std::min(chunks, first + SEGMENT) - 1;
                std::memcpy(states.data(), kept.data() + segment * size, size * sizeof(float));
                for (int64_t i = first; i <= last_chunk; i++) {
                    float *here = states.data() + (i - first) * size, *keep = solved.data() + (i - first) * 2 * C * V;
                    enter(i, i == last_chunk, i == last_chunk ? -C : C);
                    chunk.solve(here, false);
                    std::memcpy(keep, chunk.R, chunk.n * V * sizeof(float));
                    std::memcpy(keep + C * V, chunk.Y.data(), chunk.n * V * sizeof(float));
                    if (i < last_chunk) chunk.advance(here, here + size);
                }
                for (int64_t i = last_chunk; i >= first; i--) {
                    const int64_t at = i == last_chunk ? cuts[i] * H + h : enter(i, true, -C);
                    const int n = chunk.n;
                    const float *before = states.data() + (i - first) * size, *last = chunk.last();
                    const float *R = solved.data() + (i - first) * 2 * C * V, *Y = R + C * V;
                    // gradients of k+ S, which is minus that of R, and of q+ S: in the order of k+ and q+
                    float *negative = left.data(), *dO = negative + n * V;
                    load_rows(d_o + at * V, (int64_t)H * V, n, V, dO);
                    for (int x = 0; x < n * V; x++) dO[x] *= scale;
                    transpose(Y, n, V, YT.data(), C);

                    product<ZERO>(n, C, V, dO, V, 1, YT.data(), C, dP.data(), C);
                    for (int a = 0; a < n; a++)
                        for (int b = a + 1; b < C; b++) dP[a * C + b] = 0;
                    product<ZERO>(n, V, n, chunk.P, 1, C, dO, V, dY.data(), V);
                    product<ADD>(n, V, K, chunk.ke.data(), K, 1, dS.data(), V, dY.data(), V);
                    // dY now is the gradient of Y; through (I + A)^T it becomes that of beta R
                    for (int a = n - 1; a >= 0; a--) {
                        float* y = dY.data() + a * V;
                        for (int b = a + 1; b < n; b++) {
                            const float w = chunk.A[b * C + a] * chunk.beta[b], *yb = dY.data() + b * V;
#pragma omp simd
                            for (int c = 0; c < V; c++) y[c] -= w * yb[c];
                        }
                    }
                    product<ZERO>(n, C, V, dY.data(), V, 1, YT.data(), C, dA.data(), C);
                    for (int a = 0; a < n; a++) {
                        const float *y = dY.data() + a * V, *r = R + a * V, b = chunk.beta[a];
                        float sum = 0;
#pragma omp simd reduction(+ : sum)
                        for (int c = 0; c < V; c++) sum += y[c] * r[c];
                        for (int j = 0; j < C; j++) {
                            if (j >= a) {
                                dA[a * C + j] = 0;
                            } else {
                                sum -= dA[a * C + j] * chunk.A[a * C + j];
                                dA[a * C + j] *= -b;  // gradient of k+ . k-
                            }
                        }
                        d_beta[at + (int64_t)a * H] = sum;
                        float* minus = negative + a * V;
                        T* dv = d_v + (at + (int64_t)a * H) * V;
#pragma omp simd
                        for (int c = 0; c < V; c++) {
                            minus[c] = -b * y[c];
                            dv[c] = down<T>(b * y[c]);
                        }
                    }
                    // products with rows of S and dS come out transposed; so the states are read as they lie
                    product<ZERO>(K, C, V, dS.data(), V, 1, YT.data(), C, turned.data(), C);
                    transpose_back(turned.data(), C, K, dke.data());
                    transpose(dO, n, V, leftT.data(), 2 * C);
                    transpose(negative, n, V, leftT.data() + C, 2 * C);
                    product<ZERO>(K, 2 * C, V, before, V, 1, leftT.data(), 2 * C, turned.data(), 2 * C);
                    transpose_back(turned.data(), 2 * C, K, dqp.data());
                    transpose_back(turned.data() + C, 2 * C, K, dkp.data());
                    product<ADD>(n, K, n, dP.data(), C, 1, chunk.km.data(), K, dqp.data(), K);
                    product<ADD>(n, K, n, dA.data(), C, 1, chunk.km.data(), K, dkp.data(), K);
                    product<ZERO>(n, K, n, dA.data(), 1, C, chunk.kp, K, dkm.data(), K);
                    product<ADD>(n, K, n, dP.data(), 1, C, chunk.qp, K, dkm.data(), K);

                    // gradient of the running sum G, from the last row on; that of g is its sum over later rows
                    for (int c = 0; c < K; c++) {
                        const float *s = before + (int64_t)c * V, *d = dS.data() + (int64_t)c * V;
                        vec sum = vec{};
                        for (int x = 0; x < V; x += W) sum = add_product(load(s + x), load(d + x), sum);
                        carry[c] = total(sum) * last[c];
                    }
                    for (int a = 0; a < n; a++) {
                        const float *d = dke.data() + a * K, *e = chunk.ke.data() + a * K;
                        float* out = carry.data();
#pragma omp simd
                        for (int c = 0; c < K; c++) out[c] += d[c] * e[c];
                    }
                    for (int a = n - 1; a >= 0; a--) {
                        const int row = a * K;
                        const float *E = chunk.E.data() + row, *Q = dqp.data() + row, *P = dkp.data() + row,
                                    *M = dkm.data() + row, *L = dke.data() + row;
                        const int64_t out = (at + (int64_t)a * H) * K;
#pragma omp simd
                        for (int c = 0; c < K; c++) {
                            const float e = E[c] * RAISE, inverse = 1.0f / e;
                            d_q[out + c] = down<T>(Q[c] * e);
                            d_k[out + c] = down<T>(P[c] * e + M[c] * inverse + L[c] * (last[c] * inverse));
                            carry[c] += Q[c] * chunk.qp[row + c] + P[c] * chunk.kp[row + c] - M[c] * chunk.km[row + c] -
                                        L[c] * chunk.ke[row + c];
                            d_g[out + c] = carry[c];
                        }
                    }
                    // gradient of the state before the chunk: k+ and q+ against the gradients of what they read
                    product<DECAY>(K, V, 2 * n, chunk.kp, 1, K, negative, V, dS.data(), V, dS.data(), last);
                }
            }
            if (d_initial) scaled(dS.data(), size, LOWER, d_initial + own);
        }
    }
}

EXPORT void kda_forward(int half, void* q, void* k, void* v, float* g, float* beta, int* cu, int streams, int H, int K,
                        int V, float scale, float* initial, float* final, void* o, int threads) {
    if (half)
        forward((bf16*)q, (bf16*)k, (bf16*)v, g, beta, cu, streams, H, K, V, scale, initial, final, (bf16*)o, threads);
    else
        forward((float*)q, (float*)k, (float*)v, g, beta, cu, streams, H, K, V, scale, initial, final, (float*)o, threads);
}

EXPORT void kda_backward(int half, void* q, void* k, void* v, float* g, float* beta, int* cu, int streams, int H, int K,
                         int V, float scale, float* initial, void* d_o, float* d_final, void* d_q, void* d_k, void* d_v,
                         float* d_g, float* d_beta, float* d_initial, int threads) {
    if (half)
        backward((bf16*)q, (bf16*)k, (bf16*)v, g, beta, cu, streams, H, K, V, scale, initial, (bf16*)d_o, d_final, (bf16*)d_q,
                 (bf16*)d_k, (bf16*)d_v, d_g, d_beta, d_initial, threads);
    else
        backward((float*)q, (float*)k, (float*)v, g, beta, cu, streams, H, K, V, scale, initial, (float*)d_o, d_final,
                 (float*)d_q, (float*)d_k, (float*)d_v, d_g, d_beta, d_initial, threads);
}
