// The front of a KDA layer after its projections: short convolution, SiLU, L2 norm, decay gate, beta; and its output
// stage, RMSNorm(o) * sigmoid(gate). Legend: T tokens, H heads, K head width, C = H * K, W taps, P columns of `proj`.
#include "common.h"

// proj [T, P]: columns q | k | v (C each) | b (H) | anything. place [T]: index of the token in its stream.
// q, k, v [T, C]; log_decay [T, C]; beta [T, H]. bound 0: the softplus gate. window [N, 3C, W-1] or null: raw inputs before
// the first token of each stream, oldest first; afterwards those before the next one. cu [N + 1].
template <class T>
static void front(const T* proj, int64_t P, const float* filter, const int* place, const int* cu, int streams, T* window,
                  const T* z, const float* rate, const float* dt, float bound, T* qkv, float* log_decay, float* beta, int64_t rows, int H, int K,
                  int W, float l2_eps, int threads) {
    const int64_t C = (int64_t)H * K;
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> y(3 * C);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        for (int64_t i = row_begin(rows, t, n); i < row_begin(rows, t + 1, n); i++) {
            const int taps = std::min(W, place[i] + 1);
            std::fill(y.begin(), y.end(), 0.0f);
            for (int j = taps - 1; j >= 0; j--) {  // j tokens back; oldest first
                const T* x = proj + (i - j) * P;
                const float* w = filter + (int64_t)(W - 1 - j) * 3 * C;  // filter is [W, 3C]
#pragma omp simd
                for (int64_t c = 0; c < 3 * C; c++) y[c] += w[c] * up(x[c]);
            }
            if (window && place[i] < W - 1) {
                const int stream = std::upper_bound(cu, cu + streams, (int)i) - cu - 1;
                const T* old = window + (int64_t)stream * 3 * C * (W - 1);
                for (int j = W - 1; j > place[i]; j--) {  // j tokens back lies in the window, at W - 1 - (j - place)
                    const float* w = filter + (int64_t)(W - 1 - j) * 3 * C;
                    for (int64_t c = 0; c < 3 * C; c++) y[c] += w[c] * up(old[c * (W - 1) + W - 1 - (j - place[i])]);
                }
            }
#pragma omp simd
            for (int64_t c = 0; c < 3 * C; c++) y[c] *= fast_sigmoid(y[c]);
            for (int h = 0; h < 2 * H; h++) {
                float *v = y.data() + (int64_t)h * K, square = 0;
#pragma omp simd reduction(+ : square)
                for (int c = 0; c < K; c++) square += v[c] * v[c];
                const float scale = 1.0f / std::sqrt(square + l2_eps);
#pragma omp simd
                for (int c = 0; c < K; c++) v[c] *= scale;
            }
            for (int part = 0; part < 3; part++) {
                T* out = qkv + part * rows * C + i * C;
#pragma omp simd
                for (int64_t c = 0; c < C; c++) out[c] = down<T>(y[part * C + c]);
            }
            for (int h = 0; h < H; h++) beta[i * H + h] = fast_sigmoid(up(proj[i * P + 3 * C + h]));
            for (int h = 0; h < H; h++) {
                const int64_t at = i * C + (int64_t)h * K;
                const T* zi = z + at;
                const float *d = dt + (int64_t)h * K, a = rate[h];
                float* g = log_decay + at;
                if (bound != 0) {
#pragma omp simd
                    for (int c = 0; c < K; c++) g[c] = bound * fast_sigmoid(a * (up(zi[c]) + d[c]));
                } else {
#pragma omp simd
                    for (int c = 0; c < K; c++) g[c] = -a * fast_softplus(up(zi[c]) + d[c]);
                }
            }
        }
#pragma omp barrier
        if (window && W > 1)  // every row has been read
            for (int64_t s = row_begin(streams, t, n); s < row_begin(streams, t + 1, n); s++) {
                T* own = window + s * 3 * C * (W - 1);
                const int64_t first = cu[s], length = cu[s + 1] - cu[s], kept = std::max<int64_t>(0, W - 1 - length);
                for (int64_t c = 0; c < 3 * C; c++, own += W - 1) {
                    for (int64_t j = 0; j < kept; j++) own[j] = own[j + length];
                    for (int64_t j = kept; j < W - 1; j++) own[j] = proj[(first + length - (W - 1) + j) * P + c];
                }
            }
    }
}

// d_proj [T, P]: the first 3C + H columns are written. sums: filter [W, 3C] | rate [H] | dt [C].
template <class T>
static void front_backward(const T* proj, int64_t P, const float* filter, const int* place, const T* z,
                           const float* rate, const float* dt, float bound, const T* d_q, const T* d_k, const T* d_v,
                           const float* d_log_decay, const float* d_beta, T* d_proj, T* d_z, float* sums, float* slope,
                           int64_t rows, int H, int K, int W, float l2_eps, int threads) {
    const int64_t C = (int64_t)H * K, size = 3 * C * W + H + C;
    std::vector<float> partial(threads * size, 0.0f);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> u(3 * C), y(3 * C), dy(3 * C);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        float *sum_filter = partial.data() + t * size, *sum_rate = sum_filter + 3 * C * W, *sum_dt = sum_rate + H;
        const int64_t first = row_begin(rows, t, n), end = row_begin(rows, t + 1, n);
        for (int64_t i = first; i < end; i++) {
            const int taps = std::min(W, place[i] + 1);
            std::fill(u.begin(), u.end(), 0.0f);
            for (int j = taps - 1; j >= 0; j--) {
                const T* x = proj + (i - j) * P;
                const float* w = filter + (int64_t)(W - 1 - j) * 3 * C;
#pragma omp simd
                for (int64_t c = 0; c < 3 * C; c++) u[c] += w[c] * up(x[c]);
            }
            const T* upstream[3] = {d_q + i * C, d_k + i * C, d_v + i * C};
            for (int part = 0; part < 3; part++) {
                const T* d = upstream[part];
                float* out = dy.data() + part * C;
#pragma omp simd
                for (int64_t c = 0; c < C; c++) out[c] = up(d[c]);
            }
#pragma omp simd
            for (int64_t c = 0; c < 3 * C; c++) y[c] = u[c] * fast_sigmoid(u[c]);
            for (int h = 0; h < 2 * H; h++) {  // through the L2 norm of q and k
                float *v = y.data() + (int64_t)h * K, *d = dy.data() + (int64_t)h * K, square = 0, along = 0;
#pragma omp simd reduction(+ : square, along)
                for (int c = 0; c < K; c++) {
                    square += v[c] * v[c];
                    along += v[c] * d[c];
                }
                const float scale = 1.0f / std::sqrt(square + l2_eps), back = along * scale * scale * scale;
#pragma omp simd
                for (int c = 0; c < K; c++) d[c] = d[c] * scale - v[c] * back;
            }
            float* s = slope + i * 3 * C;
#pragma omp simd
            for (int64_t c = 0; c < 3 * C; c++) {
                const float sig = fast_sigmoid(u[c]);
                s[c] = dy[c] * sig * (1.0f + u[c] * (1.0f - sig));
            }
            for (int j = 0; j < taps; j++) {
                const T* x = proj + (i - j) * P;
                float* sum = sum_filter + (int64_t)(W - 1 - j) * 3 * C;
#pragma omp simd
                for (int64_t c = 0; c < 3 * C; c++) sum[c] += s[c] * up(x[c]);
            }
            for (int h = 0; h < H; h++) {
                const float b = fast_sigmoid(up(proj[i * P + 3 * C + h]));
                d_proj[i * P + 3 * C + h] = down<T>(d_beta[i * H + h] * b * (1.0f - b));
                const int64_t at = i * C + (int64_t)h * K;
                const float *d = dt + (int64_t)h * K, a = rate[h], *dg = d_log_decay + at;
                float *sd = sum_dt + (int64_t)h * K, on_rate = 0;
                const T* zi = z + at;
                T* out = d_z + at;
                if (bound == 0) {
#pragma omp simd reduction(+ : on_rate)
                    for (int c = 0; c < K; c++) {
                        const float x = up(zi[c]) + d[c], slope = -dg[c] * a * fast_sigmoid(x);
                        on_rate -= dg[c] * fast_softplus(x);
                        sd[c] += slope;
                        out[c] = down<T>(slope);
                    }
                    sum_rate[h] += on_rate;
                    continue;
                }
#pragma omp simd reduction(+ : on_rate)
                for (int c = 0; c < K; c++) {
                    const float x = up(zi[c]) + d[c], sig = fast_sigmoid(a * x);
                    const float inner = dg[c] * bound * sig * (1.0f - sig);  // at a * x
                    on_rate += inner * x;
                    sd[c] += inner * a;
                    out[c] = down<T>(inner * a);
                }
                sum_rate[h] += on_rate;
            }
        }
#pragma omp barrier
        for (int64_t i = first; i < end; i++) {  // rows after this one, in its stream, that read it
            std::fill(u.begin(), u.end(), 0.0f);
            for (int j = 0; j < W && i + j < rows && place[i + j] >= j; j++) {
                const float *s = slope + (i + j) * 3 * C, *w = filter + (int64_t)(W - 1 - j) * 3 * C;
#pragma omp simd
                for (int64_t c = 0; c < 3 * C; c++) u[c] += w[c] * s[c];
            }
            T* out = d_proj + i * P;
#pragma omp simd
            for (int64_t c = 0; c < 3 * C; c++) out[c] = down<T>(u[c]);
        }
    }
    for (int64_t c = 0; c < size; c++) {
        float sum = 0;
        for (int t = 0; t < threads; t++) sum += partial[t * size + c];
        sums[c] = sum;
    }
}

// y = RMSNorm(o; weight) * sigmoid(gate), for rows x heads vectors of width K
template <class T>
static void gated_norm(const T* o, const T* gate, const float* weight, T* y, int64_t vectors, int K, float eps,
                       int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < vectors; i++) {
            const T *a = o + i * K, *b = gate + i * K;
            T* out = y + i * K;
            float square = 0;
#pragma omp simd reduction(+ : square)
            for (int c = 0; c < K; c++) square += up(a[c]) * up(a[c]);
            const float scale = 1.0f / std::sqrt(square / K + eps);
#pragma omp simd
            for (int c = 0; c < K; c++) out[c] = down<T>(up(a[c]) * scale * weight[c] * fast_sigmoid(up(b[c])));
        }
    }
}

template <class T>
static void gated_norm_backward(const T* o, const T* gate, const float* weight, const T* d_y, T* d_o, T* d_gate,
                                float* sum, int64_t vectors, int K, float eps, int threads) {
    std::vector<float> partial((int64_t)threads * K, 0.0f);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> on_norm(K);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        float* mine = partial.data() + (int64_t)t * K;
        for (int64_t i = row_begin(vectors, t, n); i < row_begin(vectors, t + 1, n); i++) {
            const T *a = o + i * K, *b = gate + i * K, *d = d_y + i * K;
            float square = 0, along = 0;
#pragma omp simd reduction(+ : square)
            for (int c = 0; c < K; c++) square += up(a[c]) * up(a[c]);
            const float scale = 1.0f / std::sqrt(square / K + eps);
#pragma omp simd reduction(+ : along)
            for (int c = 0; c < K; c++) {
                const float sig = fast_sigmoid(up(b[c])), x = up(a[c]), g = up(d[c]);
                mine[c] += g * sig * x * scale;
                d_gate[i * K + c] = down<T>(g * x * scale * weight[c] * sig * (1.0f - sig));
                on_norm[c] = g * sig * weight[c];
                along += on_norm[c] * x;
            }
            along *= scale * scale * scale / K;
#pragma omp simd
            for (int c = 0; c < K; c++) d_o[i * K + c] = down<T>(on_norm[c] * scale - up(a[c]) * along);
        }
    }
    for (int c = 0; c < K; c++) {
        sum[c] = 0;
        for (int t = 0; t < threads; t++) sum[c] += partial[(int64_t)t * K + c];
    }
}

EXPORT void kda_front_forward(int half, void* proj, int64_t P, float* filter, int* place, int* cu, int streams,
                              void* window, void* z, float* rate, float* dt,
                              float bound, void* qkv, float* g, float* beta, int64_t rows, int H, int K, int W,
                              float eps, int threads) {
    if (half)
        front((bf16*)proj, P, filter, place, cu, streams, (bf16*)window, (bf16*)z, rate, dt, bound, (bf16*)qkv, g, beta, rows, H, K, W, eps, threads);
    else
        front((float*)proj, P, filter, place, cu, streams, (float*)window, (float*)z, rate, dt, bound, (float*)qkv, g, beta, rows, H, K, W, eps, threads);
}

EXPORT void kda_front_backward(int half, void* proj, int64_t P, float* filter, int* place, void* z, float* rate, float* dt,
                               float bound, void* dq, void* dk, void* dv, float* dg, float* db, void* d_proj, void* d_z,
                               float* sums, float* slope, int64_t rows, int H, int K, int W, float eps, int threads) {
    if (half)
        front_backward((bf16*)proj, P, filter, place, (bf16*)z, rate, dt, bound, (bf16*)dq, (bf16*)dk, (bf16*)dv, dg, db,
                       (bf16*)d_proj, (bf16*)d_z, sums, slope, rows, H, K, W, eps, threads);
    else
        front_backward((float*)proj, P, filter, place, (float*)z, rate, dt, bound, (float*)dq, (float*)dk, (float*)dv, dg,
                       db, (float*)d_proj, (float*)d_z, sums, slope, rows, H, K, W, eps, threads);
}

EXPORT void gated_norm_forward(int half, void* o, void* gate, float* w, void* y, int64_t vectors, int K, float eps,
                               int threads) {
    if (half)
        gated_norm((bf16*)o, (bf16*)gate, w, (bf16*)y, vectors, K, eps, threads);
    else
        gated_norm((float*)o, (float*)gate, w, (float*)y, vectors, K, eps, threads);
}

EXPORT void gated_norm_backward_(int half, void* o, void* gate, float* w, void* d_y, void* d_o, void* d_gate, float* sum,
                                 int64_t vectors, int K, float eps, int threads) {
    if (half)
        gated_norm_backward((bf16*)o, (bf16*)gate, w, (bf16*)d_y, (bf16*)d_o, (bf16*)d_gate, sum, vectors, K, eps, threads);
    else
        gated_norm_backward((float*)o, (float*)gate, w, (float*)d_y, (float*)d_o, (float*)d_gate, sum, vectors, K, eps,
                            threads);
}
