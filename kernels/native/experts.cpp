// Around the experts' matrix products: the router, SiTU-GLU, the way back from routed order; and the loss.
// Legend: T tokens, D hidden width, E experts, k picked, L latent width, I inner width, V vocabulary.
#include "common.h"

// SiTU-GLU, or SwiGLU where beta is 0. `linear` 0: the linear half has no bound.
struct Act {
    float beta, linear, inverse, inverse_linear;
    Act(float beta_, float linear_) : beta(beta_), linear(linear_), inverse(1.0f / beta_), inverse_linear(1.0f / linear_) {}

    // values of both halves and their slopes
    inline void halves(float x, float u, float& left, float& right, float& d_left, float& d_right) const {
        const float sig = fast_sigmoid(x);
        if (beta == 0) {
            left = x * sig;
            d_left = sig * (1.0f + x * (1.0f - sig));
        } else {
            const float bent = fast_tanh(x * inverse);
            left = beta * bent * sig;
            d_left = sig * ((1.0f - bent * bent) + beta * bent * (1.0f - sig));
        }
        if (linear == 0) {
            right = u;
            d_right = 1.0f;
        } else {
            const float wide = fast_tanh(u * inverse_linear);
            right = linear * wide;
            d_right = 1.0f - wide * wide;
        }
    }
};

// gate_up [rows, 2I] (gate half first) -> y [rows, I]
template <class T>
static void situ(const T* gate_up, T* y, int64_t rows, int64_t I, float beta, float linear, int threads) {
    const Act act(beta, linear);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            const T *g = gate_up + i * 2 * I, *u = g + I;
            T* out = y + i * I;
#pragma omp simd
            for (int64_t c = 0; c < I; c++) {
                float left, right, d_left, d_right;
                act.halves(up(g[c]), up(u[c]), left, right, d_left, d_right);
                out[c] = down<T>(left * right);
            }
        }
    }
}

template <class T>
static void situ_backward(const T* gate_up, const T* d_y, T* d_gate_up, T* y, int64_t rows, int64_t I, float beta,
                          float linear, int threads) {
    const Act act(beta, linear);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            const T *g = gate_up + i * 2 * I, *u = g + I, *d = d_y + i * I;
            T *dg = d_gate_up + i * 2 * I, *du = dg + I, *out = y + i * I;
#pragma omp simd
            for (int64_t c = 0; c < I; c++) {
                float left, right, d_left, d_right;
                act.halves(up(g[c]), up(u[c]), left, right, d_left, d_right);
                const float grad = up(d[c]);
                dg[c] = down<T>(grad * right * d_left);
                du[c] = down<T>(grad * left * d_right);
                out[c] = down<T>(left * right);
            }
        }
    }
}

// scores [T, E] = sigmoid(x W^T); the k + 1 best of score + bias, ties to the lower index; weights of the first k
template <class T>
static void route(const T* x, const float* w, const float* bias, float* score, int64_t* picked, float* weight,
                  float* cutoff, int64_t rows, int64_t D, int E, int k, float scaling, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> row(D), biased(E);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        for (int64_t i = row_begin(rows, t, n); i < row_begin(rows, t + 1, n); i++) {
            const T* xi = x + i * D;
#pragma omp simd
            for (int64_t c = 0; c < D; c++) row[c] = up(xi[c]);
            for (int e = 0; e < E; e++) {
                const float* we = w + e * D;
                float dot = 0;
#pragma omp simd reduction(+ : dot)
                for (int64_t c = 0; c < D; c++) dot += row[c] * we[c];
                score[i * E + e] = 1.0f / (1.0f + std::exp(-dot));
                biased[e] = score[i * E + e] + bias[e];
            }
            float total = 0;
            for (int j = 0; j <= k; j++) {
                int best = 0;
                for (int e = 1; e < E; e++)
                    if (biased[e] > biased[best]) best = e;
                if (j == k) {
                    cutoff[i] = biased[best];
                    break;
                }
                biased[best] = -INFINITY;
                picked[i * k + j] = best;
                total += score[i * E + best];
            }
            for (int j = 0; j < k; j++)
                weight[i * k + j] = score[i * E + picked[i * k + j]] / (total + 1e-20f) * scaling;
        }
    }
}

template <class T>
static void route_backward(const T* x, const float* w, const float* score, const int64_t* picked, const float* d_weight,
                           T* d_x, float* d_w, int64_t rows, int64_t D, int E, int k, float scaling, int threads) {
    std::vector<float> partial((int64_t)threads * E * D, 0.0f);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> sum(D);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        float* mine = partial.data() + (int64_t)t * E * D;
        for (int64_t i = row_begin(rows, t, n); i < row_begin(rows, t + 1, n); i++) {
            const int64_t* p = picked + i * k;
            const float *s = score + i * E, *d = d_weight + i * k;
            const T* xi = x + i * D;
            float total = 1e-20f, along = 0;
            for (int j = 0; j < k; j++) total += s[p[j]];
            for (int j = 0; j < k; j++) along += d[j] * s[p[j]] / total;
            std::fill(sum.begin(), sum.end(), 0.0f);
            for (int j = 0; j < k; j++) {
                const float own = s[p[j]], slope = scaling * (d[j] - along) / total * own * (1.0f - own);
                const float* we = w + p[j] * D;
                float* dw = mine + p[j] * D;
#pragma omp simd
                for (int64_t c = 0; c < D; c++) {
                    sum[c] += slope * we[c];
                    dw[c] += slope * up(xi[c]);
                }
            }
            T* out = d_x + i * D;
#pragma omp simd
            for (int64_t c = 0; c < D; c++) out[c] = down<T>(sum[c]);
        }
    }
    for (int64_t c = 0; c < (int64_t)E * D; c++) {
        float sum = 0;
        for (int t = 0; t < threads; t++) sum += partial[(int64_t)t * E * D + c];
        d_w[c] = sum;
    }
}

// y [T * k, L] in routed order, at [T * k]: row of y for choice j of token i. mixed = sum_j weight y; h = RMSNorm(mixed).
template <class T>
static void combine(const T* y, const int64_t* at, const float* weight, const float* norm, T* h, int64_t rows, int k,
                    int64_t L, float eps, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> m(L);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        for (int64_t i = row_begin(rows, t, n); i < row_begin(rows, t + 1, n); i++) {
            std::fill(m.begin(), m.end(), 0.0f);
            for (int j = 0; j < k; j++) {
                const T* s = y + at[i * k + j] * L;
                const float p = weight[i * k + j];
#pragma omp simd
                for (int64_t c = 0; c < L; c++) m[c] += p * up(s[c]);
            }
            T* out = h + i * L;
            if (!norm) {
#pragma omp simd
                for (int64_t c = 0; c < L; c++) out[c] = down<T>(m[c]);
                continue;
            }
            float square = 0;
#pragma omp simd reduction(+ : square)
            for (int64_t c = 0; c < L; c++) square += m[c] * m[c];
            const float scale = 1.0f / std::sqrt(square / L + eps);
#pragma omp simd
            for (int64_t c = 0; c < L; c++) out[c] = down<T>(m[c] * scale * norm[c]);
        }
    }
}

template <class T>
static void combine_backward(const T* y, const int64_t* at, const float* weight, const float* norm, const T* d_h, T* d_y,
                             float* d_weight, float* d_norm, int64_t rows, int k, int64_t L, float eps, int threads) {
    std::vector<float> partial((int64_t)threads * L, 0.0f);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> m(L), dm(L);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        float* mine = partial.data() + (int64_t)t * L;
        for (int64_t i = row_begin(rows, t, n); i < row_begin(rows, t + 1, n); i++) {
            const T* d = d_h + i * L;
            if (norm) {
                std::fill(m.begin(), m.end(), 0.0f);
                for (int j = 0; j < k; j++) {
                    const T* s = y + at[i * k + j] * L;
                    const float p = weight[i * k + j];
#pragma omp simd
                    for (int64_t c = 0; c < L; c++) m[c] += p * up(s[c]);
                }
                float square = 0, along = 0;
#pragma omp simd reduction(+ : square)
                for (int64_t c = 0; c < L; c++) square += m[c] * m[c];
                const float scale = 1.0f / std::sqrt(square / L + eps);
#pragma omp simd reduction(+ : along)
                for (int64_t c = 0; c < L; c++) {
                    const float g = up(d[c]);
                    mine[c] += g * m[c] * scale;
                    dm[c] = g * norm[c];
                    along += dm[c] * m[c];
                }
                along *= scale * scale * scale / L;
#pragma omp simd
                for (int64_t c = 0; c < L; c++) dm[c] = dm[c] * scale - m[c] * along;
            } else {
#pragma omp simd
                for (int64_t c = 0; c < L; c++) dm[c] = up(d[c]);
            }
            for (int j = 0; j < k; j++) {
                const int64_t row = at[i * k + j] * L;
                const float p = weight[i * k + j];
                float dot = 0;
#pragma omp simd reduction(+ : dot)
                for (int64_t c = 0; c < L; c++) {
                    dot += dm[c] * up(y[row + c]);
                    d_y[row + c] = down<T>(p * dm[c]);
                }
                d_weight[i * k + j] = dot;
            }
        }
    }
    for (int64_t c = 0; norm && c < L; c++) {
        d_norm[c] = 0;
        for (int t = 0; t < threads; t++) d_norm[c] += partial[(int64_t)t * L + c];
    }
}

// d_z[i] = sum_j d_rows[at[i, j]]: the gradient of copying a token to its k places
template <class T>
static void gather_sum(const T* rows_in, const int64_t* at, T* out, int64_t rows, int k, int64_t L, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> m(L);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        for (int64_t i = row_begin(rows, t, n); i < row_begin(rows, t + 1, n); i++) {
            std::fill(m.begin(), m.end(), 0.0f);
            for (int j = 0; j < k; j++) {
                const T* s = rows_in + at[i * k + j] * L;
#pragma omp simd
                for (int64_t c = 0; c < L; c++) m[c] += up(s[c]);
            }
#pragma omp simd
            for (int64_t c = 0; c < L; c++) out[i * L + c] = down<T>(m[c]);
        }
    }
}

// logits [rows, V] -> nll [rows]; with `weight` the logits become weight * (softmax - one at the target)
template <class T>
static void cross_entropy(T* logits, const int64_t* target, const float* weight, float* nll, int64_t rows, int64_t V,
                          int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> x(V);
        int t = omp_get_thread_num(), n = omp_get_num_threads();
        for (int64_t i = row_begin(rows, t, n); i < row_begin(rows, t + 1, n); i++) {
            T* l = logits + i * V;
            float top = -INFINITY, total = 0;
#pragma omp simd reduction(max : top)
            for (int64_t c = 0; c < V; c++) top = std::max(top, up(l[c]));
            const float own = up(l[target[i]]);
#pragma omp simd reduction(+ : total)
            for (int64_t c = 0; c < V; c++) total += (x[c] = fast_exp(up(l[c]) - top));
            nll[i] = std::log(total) + top - own;
            if (!weight) continue;
            const float scale = weight[i] / total;
#pragma omp simd
            for (int64_t c = 0; c < V; c++) l[c] = down<T>(x[c] * scale);
            l[target[i]] = down<T>(x[target[i]] * scale - weight[i]);
        }
    }
}

#define BOTH(call_half, call_full) \
    if (half)                      \
        call_half;                 \
    else                           \
        call_full

EXPORT void situ_forward(int half, void* gu, void* y, int64_t rows, int64_t I, float beta, float linear, int threads) {
    BOTH(situ((bf16*)gu, (bf16*)y, rows, I, beta, linear, threads), situ((float*)gu, (float*)y, rows, I, beta, linear, threads));
}

EXPORT void situ_backward_(int half, void* gu, void* d_y, void* d_gu, void* y, int64_t rows, int64_t I, float beta,
                           float linear, int threads) {
    BOTH(situ_backward((bf16*)gu, (bf16*)d_y, (bf16*)d_gu, (bf16*)y, rows, I, beta, linear, threads),
         situ_backward((float*)gu, (float*)d_y, (float*)d_gu, (float*)y, rows, I, beta, linear, threads));
}

EXPORT void route_forward(int half, void* x, float* w, float* bias, float* score, int64_t* picked, float* weight,
                          float* cutoff, int64_t rows, int64_t D, int E, int k, float scaling, int threads) {
    BOTH(route((bf16*)x, w, bias, score, picked, weight, cutoff, rows, D, E, k, scaling, threads),
         route((float*)x, w, bias, score, picked, weight, cutoff, rows, D, E, k, scaling, threads));
}

EXPORT void route_backward_(int half, void* x, float* w, float* score, int64_t* picked, float* d_weight, void* d_x,
                            float* d_w, int64_t rows, int64_t D, int E, int k, float scaling, int threads) {
    BOTH(route_backward((bf16*)x, w, score, picked, d_weight, (bf16*)d_x, d_w, rows, D, E, k, scaling, threads),
         route_backward((float*)x, w, score, picked, d_weight, (float*)d_x, d_w, rows, D, E, k, scaling, threads));
}

EXPORT void combine_forward(int half, void* y, int64_t* at, float* weight, float* norm, void* h, int64_t rows, int k,
                            int64_t L, float eps, int threads) {
    BOTH(combine((bf16*)y, at, weight, norm, (bf16*)h, rows, k, L, eps, threads),
         combine((float*)y, at, weight, norm, (float*)h, rows, k, L, eps, threads));
}

EXPORT void combine_backward_(int half, void* y, int64_t* at, float* weight, float* norm, void* d_h, void* d_y,
                              float* d_weight, float* d_norm, int64_t rows, int k, int64_t L, float eps, int threads) {
    BOTH(combine_backward((bf16*)y, at, weight, norm, (bf16*)d_h, (bf16*)d_y, d_weight, d_norm, rows, k, L, eps, threads),
         combine_backward((float*)y, at, weight, norm, (float*)d_h, (float*)d_y, d_weight, d_norm, rows, k, L, eps, threads));
}

EXPORT void gather_sum_(int half, void* rows_in, int64_t* at, void* out, int64_t rows, int k, int64_t L, int threads) {
    BOTH(gather_sum((bf16*)rows_in, at, (bf16*)out, rows, k, L, threads),
         gather_sum((float*)rows_in, at, (float*)out, rows, k, L, threads));
}

EXPORT void cross_entropy_(int half, void* logits, int64_t* target, float* weight, float* nll, int64_t rows, int64_t V,
                           int threads) {
    BOTH(cross_entropy((bf16*)logits, target, weight, nll, rows, V, threads),
         cross_entropy((float*)logits, target, weight, nll, rows, V, threads));
}
