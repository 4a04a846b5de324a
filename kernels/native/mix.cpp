// Residual add, Attention Residuals mix and RMSNorm in one pass over each row; and its gradient.
//   run = last source + update;  m = sum_i softmax_i(qg . x_i r_i) x_i;  h = norm * m * rsqrt(mean m^2 + eps2)
// with r_i = rsqrt(mean x_i^2 + eps). One source and no query: m is that source.
#include "common.h"

template <class T>
struct Row {
    int n;
    int64_t D;
    std::vector<float> x, m;  // sources [n, D] and mix [D] of the row at hand
    std::vector<float> r, e, a;

    Row(int n_, int64_t D_) : n(n_), D(D_), x(n_ * D_), m(D_), r(n_), e(n_), a(n_) {}

    void load(const T* const* src, const T* update, int64_t row) {
        for (int i = 0; i < n; i++) {
            const T* s = src[i] + row * D;
            float* xi = x.data() + i * D;
#pragma omp simd
            for (int64_t c = 0; c < D; c++) xi[c] = up(s[c]);
        }
        if (update) {
            const T* u = update + row * D;
            float* xi = x.data() + (n - 1) * D;
#pragma omp simd
            for (int64_t c = 0; c < D; c++) xi[c] = up(down<T>(xi[c] + up(u[c])));
        }
    }

    // fills r, e, a and m; m is rounded to T as the unfused form rounds it
    void mix(const float* qg, float eps) {
        float* mm = m.data();
        if (!qg) {
            std::memcpy(mm, x.data(), D * sizeof(float));
            return;
        }
        float top = -INFINITY;
        for (int i = 0; i < n; i++) {
            const float* xi = x.data() + i * D;
            float dot = 0, square = 0;
#pragma omp simd reduction(+ : dot, square)
            for (int64_t c = 0; c < D; c++) {
                dot += qg[c] * xi[c];
                square += xi[c] * xi[c];
            }
            r[i] = 1.0f / std::sqrt(square / D + eps);
            e[i] = dot * r[i];
            top = std::max(top, e[i]);
        }
        float total = 0;
        for (int i = 0; i < n; i++) total += (a[i] = std::exp(e[i] - top));
        for (int i = 0; i < n; i++) a[i] /= total;
        for (int64_t c = 0; c < D; c++) mm[c] = a[0] * x[c];
        for (int i = 1; i < n; i++) {
            const float *xi = x.data() + i * D, ai = a[i];
#pragma omp simd
            for (int64_t c = 0; c < D; c++) mm[c] += ai * xi[c];
        }
#pragma omp simd
        for (int64_t c = 0; c < D; c++) mm[c] = up(down<T>(mm[c]));
    }

    float inverse_rms(float eps) const {
        const float* mm = m.data();
        float square = 0;
#pragma omp simd reduction(+ : square)
        for (int64_t c = 0; c < D; c++) square += mm[c] * mm[c];
        return 1.0f / std::sqrt(square / D + eps);
    }
};

template <class T>
static void forward(const T* const* src, int n, const T* update, const float* qg, const float* norm, T* run, T* h,
                    int64_t rows, int64_t D, float eps, float eps2, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Row<T> row(n, D);
        int t = omp_get_thread_num(), k = omp_get_num_threads();
        for (int64_t i = row_begin(rows, t, k); i < row_begin(rows, t + 1, k); i++) {
            row.load(src, update, i);
            row.mix(qg, eps);
            const float rho = row.inverse_rms(eps2), *m = row.m.data(), *last = row.x.data() + (n - 1) * D;
            T* out = h + i * D;
#pragma omp simd
            for (int64_t c = 0; c < D; c++) out[c] = down<T>(m[c] * rho * norm[c]);
            if (update) {
                T* r = run + i * D;
#pragma omp simd
                for (int64_t c = 0; c < D; c++) r[c] = down<T>(last[c]);
            }
        }
    }
}

// d_run: gradient that reaches `run` from elsewhere, or null. d_src[i] receive the gradients of the sources; that of
// the update equals that of the last source. sums [2, D]: gradients of qg and of norm.
template <class T>
static void backward(const T* const* src, int n, const T* update, const float* qg, const float* norm, const T* d_h,
                     const T* d_run, T* const* d_src, float* sums, int64_t rows, int64_t D, float eps, float eps2,
                     int threads) {
    std::vector<float> partial(threads * 2 * D, 0.0f);
#pragma omp parallel num_threads(threads)
    {
        Row<T> row(n, D);
        std::vector<float> d_m(D), share(n);
        int t = omp_get_thread_num(), k = omp_get_num_threads();
        float *sum_qg = partial.data() + t * 2 * D, *sum_norm = sum_qg + D, *dm = d_m.data();
        for (int64_t i = row_begin(rows, t, k); i < row_begin(rows, t + 1, k); i++) {
            row.load(src, update, i);
            row.mix(qg, eps);
            const float rho = row.inverse_rms(eps2), *m = row.m.data();
            const T* dh = d_h + i * D;
            float along = 0;
#pragma omp simd reduction(+ : along)
            for (int64_t c = 0; c < D; c++) {
                float g = up(dh[c]);
                sum_norm[c] += g * m[c] * rho;
                dm[c] = g * norm[c];
                along += dm[c] * m[c];
            }
            along *= rho * rho * rho / D;
#pragma omp simd
            for (int64_t c = 0; c < D; c++) dm[c] = dm[c] * rho - m[c] * along;
            if (!qg) {
                share[0] = 0;
                row.a[0] = 1;
            } else {
                float mean = 0;
                for (int s = 0; s < n; s++) {
                    const float* x = row.x.data() + s * D;
                    float dot = 0;
#pragma omp simd reduction(+ : dot)
                    for (int64_t c = 0; c < D; c++) dot += dm[c] * x[c];
                    share[s] = dot;
                    mean += row.a[s] * dot;
                }
                for (int s = 0; s < n; s++) share[s] = row.a[s] * (share[s] - mean);  // gradient of the score
            }
            for (int s = 0; s < n; s++) {
                const float *x = row.x.data() + s * D, a = row.a[s];
                T* out = d_src[s] + i * D;
                const T* more = d_run && s == n - 1 ? d_run + i * D : nullptr;
                if (qg) {
                    const float on_q = share[s] * row.r[s], on_x = share[s] * row.e[s] * row.r[s] * row.r[s] / D;
                    if (more) {
#pragma omp simd
                        for (int64_t c = 0; c < D; c++) {
                            sum_qg[c] += on_q * x[c];
                            out[c] = down<T>(a * dm[c] + on_q * qg[c] - on_x * x[c] + up(more[c]));
                        }
                    } else {
#pragma omp simd
                        for (int64_t c = 0; c < D; c++) {
                            sum_qg[c] += on_q * x[c];
                            out[c] = down<T>(a * dm[c] + on_q * qg[c] - on_x * x[c]);
                        }
                    }
                } else if (more) {
#pragma omp simd
                    for (int64_t c = 0; c < D; c++) out[c] = down<T>(dm[c] + up(more[c]));
                } else {
#pragma omp simd
                    for (int64_t c = 0; c < D; c++) out[c] = down<T>(dm[c]);
                }
            }
        }
    }
    for (int64_t c = 0; c < 2 * D; c++) {
        float sum = 0;
        for (int t = 0; t < threads; t++) sum += partial[t * 2 * D + c];
        sums[c] = sum;
    }
}

EXPORT void mix_norm_forward(int half, void** src, int n, void* update, float* qg, float* norm, void* run, void* h,
                             int64_t rows, int64_t D, float eps, float eps2, int threads) {
    if (half)
        forward((const bf16* const*)src, n, (bf16*)update, qg, norm, (bf16*)run, (bf16*)h, rows, D, eps, eps2, threads);
    else
        forward((const float* const*)src, n, (float*)update, qg, norm, (float*)run, (float*)h, rows, D, eps, eps2, threads);
}

EXPORT void mix_norm_backward(int half, void** src, int n, void* update, float* qg, float* norm, void* d_h, void* d_run,
                              void** d_src, float* sums, int64_t rows, int64_t D, float eps, float eps2, int threads) {
    if (half)
        backward((const bf16* const*)src, n, (bf16*)update, qg, norm, (bf16*)d_h, (bf16*)d_run, (bf16* const*)d_src,
                 sums, rows, D, eps, eps2, threads);
    else
        backward((const float* const*)src, n, (float*)update, qg, norm, (float*)d_h, (float*)d_run, (float* const*)d_src,
                 sums, rows, D, eps, eps2, threads);
}
