// Kimi Delta Attention in chunks of at most 16 tokens, for any log decay: a chunk ends early where the decay over it would
// leave float32. Where it ends depends on no later row, so no later row changes a bit of an earlier result.
// Source of the chunk form: Kimi Linear report (arXiv:2510.26692); the bound makes e^{-G} of a chunk fit float32.
// Per stream and head, with G the running sum of g inside a chunk, E = e^G, k+ = k E, q+ = q E, k- = k / E, k= = k e^{Gn - G}:
//   R = v - k+ S;   (I + A) Y = beta R,  A_ij = beta_i k+_i . k-_j  (i > j)
//   o = scale (q+ S + P Y),  P_ij = q+_i . k-_j  (i >= j);   S' = diag(e^{Gn}) S + k=^T Y
// All tiles of a head stay in the first-level cache. Legend: K key width, V value width, C rows of a chunk, n its length.
#include "vector.h"

constexpr int C = 16;
constexpr float LOWEST = -80.0f;  // e^80 and what it multiplies fit float32
// Decayed rows are held 2^58 times as large, inverse ones and states as much smaller: e^-80 of a row would be taken for zero
constexpr float RAISE = 0x1p58f, LOWER = 0x1p-58f;
constexpr float GONE = -20.0f;    // 2e-9 of a state is below the rounding of the rest; stronger decays are taken for this one

// c[m, NV * W] (+)= a b with a(i, k) = a[i * ra + k * ca]; rows of b and c are `stride` apart
template <int MR, int NV, bool ADD>
static inline void block(int depth, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc) {
    vec sum[MR][NV];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) sum[i][j] = ADD ? load(c + i * ldc + j * W) : vec{};
    for (int k = 0; k < depth; k++) {
        vec row[NV];
        for (int j = 0; j < NV; j++) row[j] = load(b + k * ldb + j * W);
        for (int i = 0; i < MR; i++) {
            const float x = a[i * ra + k * ca];
            for (int j = 0; j < NV; j++) sum[i][j] += x * row[j];
        }
    }
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < NV; j++) store(c + i * ldc + j * W, sum[i][j]);
}

template <int NV, bool ADD>
static void columns(int m, int depth, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc) {
    int i = 0;
    for (; i + 4 <= m; i += 4) block<4, NV, ADD>(depth, a + i * ra, ra, ca, b, ldb, c + i * ldc, ldc);
    for (; i < m; i++) block<1, NV, ADD>(depth, a + i * ra, ra, ca, b, ldb, c + i * ldc, ldc);
}

// width must be a multiple of 16
template <bool ADD>
static void product(int m, int width, int depth, const float* a, int ra, int ca, const float* b, int ldb, float* c, int ldc) {
    int j = 0;
    for (; j + 4 * W <= width; j += 4 * W) columns<4, ADD>(m, depth, a, ra, ca, b + j, ldb, c + j, ldc);
    for (; j < width; j += W) columns<1, ADD>(m, depth, a, ra, ca, b + j, ldb, c + j, ldc);
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

static void transpose(const float* src, int n, int width, float* out) {  // [n, width] -> [width, C], missing rows zero
    for (int i = 0; i < C; i++)
        for (int c = 0; c < width; c++) out[c * C + i] = i < n ? src[i * width + c] : 0.0f;
}

static void scaled(const float* from, int64_t size, float by, float* to) {
#pragma omp simd
    for (int64_t i = 0; i < size; i++) to[i] = from[i] * by;
}

// everything a chunk computes before it meets the state
struct Chunk {
    int K, V, n = 0;
    std::vector<float> q, k, v, E, qp, kp, km, ke, kmT, A, P, beta, R, Y;
    // A holds k+_i . k-_j without beta; P and A are [C, C] with exact zeros where the mask is

    Chunk(int K_, int V_)
        : K(K_), V(V_), q(C * K_), k(C * K_), v(C * V_), E(C * K_), qp(C * K_), kp(C * K_), km(C * K_), ke(C * K_),
          kmT(K_ * C), A(C * C), P(C * C), beta(C), R(C * V_), Y(C * V_) {}

    template <class T>
    void read(const T* Q, const T* Kk, const T* Vv, const float* g, const float* b, int64_t key_stride,
              int64_t value_stride, int64_t heads, int rows) {
        n = rows;
        load_rows(Q, key_stride, n, K, q.data());
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
        within();
        for (int i = 0; i < n; i++)
            for (int j = i; j < C; j++) {
                A[i * C + j] = 0;
                if (j > i) P[i * C + j] = 0;
            }
    }

    void within() {
        const float* last = E.data() + (n - 1) * K;
        for (int i = 0; i < n; i++) {
            const int at = i * K;
#pragma omp simd
            for (int c = 0; c < K; c++) {
                const float e = E[at + c] * RAISE, inverse = 1.0f / e;
                qp[at + c] = q[at + c] * e;
                kp[at + c] = k[at + c] * e;
                km[at + c] = k[at + c] * inverse;
                ke[at + c] = k[at + c] * (last[c] * inverse);
            }
        }
        transpose(km.data(), n, K, kmT.data());
        product<false>(n, C, K, kp.data(), K, 1, kmT.data(), C, A.data(), C);
        product<false>(n, C, K, qp.data(), K, 1, kmT.data(), C, P.data(), C);
    }

    // R and Y from the incoming state [K, V]
    void solve(const float* S) {
        product<false>(n, V, K, kp.data(), K, 1, S, V, R.data(), V);
        for (int i = 0; i < n; i++) {
            float *r = R.data() + i * V, *y = Y.data() + i * V;
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

    void advance(float* S) const {  // S [K, V]
        const float* last = E.data() + (n - 1) * K;
        for (int c = 0; c < K; c++) {
            float* s = S + c * V;
#pragma omp simd
            for (int x = 0; x < V; x++) s[x] *= last[c];
        }
        product<true>(K, V, n, ke.data(), 1, K, Y.data(), V, S, V);
    }
};

// rows at the beginning of `left` ones, at most C and at least four if there are, over which no channel decays below LOWEST
static int rows_that_fit(const float* g, int64_t stride, int K, int64_t left, float* sum) {
    const int most = (int)std::min<int64_t>(C, left);
    std::fill(sum, sum + K, 0.0f);
    for (int i = 0; i < most; i++) {
        const float* gi = g + i * stride;
        float low = 0;
#pragma omp simd reduction(min : low)
        for (int c = 0; c < K; c++) {
            sum[c] += std::max(gi[c], GONE);
            low = std::min(low, sum[c]);
        }
        if (low < LOWEST) return i;
    }
    return most;
}

// [rows, cols] -> [cols, rows], both multiples of 16
static void turn_over(const float* from, int rows, int cols, float* to) {
    for (int i = 0; i < rows; i += W)
        for (int j = 0; j < cols; j += W) turn(from + (int64_t)i * cols + j, cols, to + (int64_t)j * rows + i, rows);
}

// q, k, g [T, H, K]; v, o [T, H, V]; beta [T, H]; cu [N + 1]; states [N, H, K, V] or null
template <class T>
static void forward(const T* q, const T* k, const T* v, const float* g, const float* beta, const int* cu, int streams,
                    int H, int K, int V, float scale, const float* initial, float* final, T* o, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        Chunk chunk(K, V);
        std::vector<float> S(K * V), out(C * V), sum(K);
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
                chunk.read(q + at * K, k + at * K, v + at * V, g + at * K, beta + at, (int64_t)H * K, (int64_t)H * V, H, n);
                chunk.solve(S.data());
                product<false>(n, V, K, chunk.qp.data(), K, 1, S.data(), V, out.data(), V);
                product<true>(n, V, n, chunk.P.data(), C, 1, chunk.Y.data(), V, out.data(), V);
                for (int i = 0; i < n; i++) {
                    T* row = o + (at + (int64_t)i * H) * V;
#pragma omp simd
                    for (int c = 0; c < V; c++) row[c] = down<T>(out[i * V + c] * scale);
                }
                chunk.advance(S.data());
            }
            if (final) scaled(S.data(), size, RAISE, final + (stream * H + h) * size);
        }
    }
}

// States are kept once a segment of so many chunks, and made again inside the segment at hand: memory does not grow with T
// beyond one state in SEGMENT chunks.
constexpr int SEGMENT = 64;

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
        std::vector<float> S(size), ST(size), dS(size), dST(size), kept, states, dO(C * V), dY(C * V), YT(V * C), dP(C * C), dA(C * C);
        std::vector<float> dqp(C * K), dkp(C * K), dkm(C * K), dke(C * K), carry(K), negative(C * V);
        std::vector<int64_t> cuts;
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < streams * H; task++) {
            const int64_t stream = task / H, h = task % H, begin = cu[stream], end = cu[stream + 1];
            const int64_t own = (stream * H + h) * size;
            cuts.assign(1, begin);
            for (int64_t t = begin; t < end; cuts.push_back(t))
                t += rows_that_fit(g + (t * H + h) * K, (int64_t)H * K, K, end - t, carry.data());
            const int64_t chunks = (int64_t)cuts.size() - 1, segments = (chunks + SEGMENT - 1) / SEGMENT;
            auto enter = [&](int64_t i) {
                const int64_t at = cuts[i] * H + h;
                chunk.read(q + at * K, k + at * K, v + at * V, g + at * K, beta + at, (int64_t)H * K, (int64_t)H * V, H,
                           (int)(cuts[i + 1] - cuts[i]));
                return at;
            };
            if (initial)
                scaled(initial + own, size, LOWER, S.data());
            else
                std::fill(S.begin(), S.end(), 0.0f);
            if ((int64_t)kept.size() < segments * size) kept.resize(segments * size);
            if ((int64_t)states.size() < std::min<int64_t>(chunks, SEGMENT) * size) states.resize(std::min<int64_t>(chunks, SEGMENT) * size);
            for (int64_t i = 0; i < chunks; i++) {
                if (i % SEGMENT == 0) std::memcpy(kept.data() + i / SEGMENT * size, S.data(), size * sizeof(float));
                if (i >= (segments - 1) * SEGMENT) break;  // the last segment's are made below
                enter(i);
                chunk.solve(S.data());
                chunk.advance(S.data());
            }
            if (d_final)
                scaled(d_final + own, size, RAISE, dS.data());
            else
                std::fill(dS.begin(), dS.end(), 0.0f);
            for (int64_t segment = segments - 1; segment >= 0; segment--) {
                const int64_t first = segment * SEGMENT, last_chunk = std::min(chunks, first + SEGMENT) - 1;
                std::memcpy(states.data(), kept.data() + segment * size, size * sizeof(float));
                for (int64_t i = first; i < last_chunk; i++) {
                    float* next = states.data() + (i - first + 1) * size;
                    std::memcpy(next, next - size, size * sizeof(float));
                    enter(i);
                    chunk.solve(next);
                    chunk.advance(next);
                }
                for (int64_t i = last_chunk; i >= first; i--) {
                    const int64_t at = enter(i);
                    const int n = chunk.n;
                    const float *before = states.data() + (i - first) * size, *last = chunk.E.data() + (n - 1) * K;
                    turn_over(before, K, V, ST.data());
                    turn_over(dS.data(), K, V, dST.data());
                    chunk.solve(before);
                    load_rows(d_o + at * V, (int64_t)H * V, n, V, dO.data());
                    for (int x = 0; x < n * V; x++) dO[x] *= scale;
                    transpose(chunk.Y.data(), n, V, YT.data());

                    product<false>(n, C, V, dO.data(), V, 1, YT.data(), C, dP.data(), C);
                    for (int a = 0; a < n; a++)
                        for (int b = a + 1; b < C; b++) dP[a * C + b] = 0;
                    product<false>(n, V, n, chunk.P.data(), 1, C, dO.data(), V, dY.data(), V);
                    product<true>(n, V, K, chunk.ke.data(), K, 1, dS.data(), V, dY.data(), V);
                    // dY now is the gradient of Y; through (I + A)^T it becomes that of beta R
                    for (int a = n - 1; a >= 0; a--) {
                        float* y = dY.data() + a * V;
                        for (int b = a + 1; b < n; b++) {
                            const float w = chunk.A[b * C + a] * chunk.beta[b], *yb = dY.data() + b * V;
#pragma omp simd
                            for (int c = 0; c < V; c++) y[c] -= w * yb[c];
                        }
                    }
                    product<false>(n, C, V, dY.data(), V, 1, YT.data(), C, dA.data(), C);
                    for (int a = 0; a < n; a++) {
                        const float *y = dY.data() + a * V, *r = chunk.R.data() + a * V, b = chunk.beta[a];
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
                        float* minus = negative.data() + a * V;  // gradient of k+ S; with the other sign that of v
                        T* dv = d_v + (at + (int64_t)a * H) * V;
#pragma omp simd
                        for (int c = 0; c < V; c++) {
                            minus[c] = -b * y[c];
                            dv[c] = down<T>(b * y[c]);
                        }
                    }
                    product<false>(n, K, V, chunk.Y.data(), V, 1, dST.data(), K, dke.data(), K);
                    product<false>(n, K, V, dO.data(), V, 1, ST.data(), K, dqp.data(), K);
                    product<true>(n, K, n, dP.data(), C, 1, chunk.km.data(), K, dqp.data(), K);
                    product<false>(n, K, V, negative.data(), V, 1, ST.data(), K, dkp.data(), K);
                    product<true>(n, K, n, dA.data(), C, 1, chunk.km.data(), K, dkp.data(), K);
                    product<false>(n, K, n, dA.data(), 1, C, chunk.kp.data(), K, dkm.data(), K);
                    product<true>(n, K, n, dP.data(), 1, C, chunk.qp.data(), K, dkm.data(), K);

                    // gradient of the running sum G, from the last row on; that of g is its sum over later rows
                    std::fill(carry.begin(), carry.end(), 0.0f);
                    for (int x = 0; x < V; x++) {
                        const float *s = ST.data() + (int64_t)x * K, *d = dST.data() + (int64_t)x * K;
                        float* out = carry.data();
#pragma omp simd
                        for (int c = 0; c < K; c++) out[c] += s[c] * d[c];
                    }
                    for (int c = 0; c < K; c++) carry[c] *= last[c];
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
                    // gradient of the state before the chunk
                    for (int c = 0; c < K; c++) {
                        float* s = dS.data() + (int64_t)c * V;
#pragma omp simd
                        for (int x = 0; x < V; x++) s[x] *= last[c];
                    }
                    product<true>(K, V, n, chunk.qp.data(), 1, K, dO.data(), V, dS.data(), V);
                    product<true>(K, V, n, chunk.kp.data(), 1, K, negative.data(), V, dS.data(), V);
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
