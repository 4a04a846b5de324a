// What an optimizer's step does to its tensors: the Newton-Schulz iteration of matrices that stay in a core's cache, with
// Muon's momentum before and its update behind it in the same visit; and AdamW in one pass.
// Arithmetic of one element never depends on where it lies, so sharded and whole tensors get the same bits.
// Legend: m <= n sides of a block; a tall block is worked on as its transpose.
#include "products.h"

constexpr float A = 3.4445f, B = -4.7750f, C = 2.0315f, TINY = 1e-7f;

static inline vec load_some(const float* p, int64_t n) {
    if (n >= W) return load(p);
    vec v{};
    std::memcpy(&v, p, n * sizeof(float));
    return v;
}
static inline void store_some(float* p, vec v, int64_t n) { std::memcpy(p, &v, std::min<int64_t>(n, W) * sizeof(float)); }

static inline int64_t filled(int64_t n) { return (n + W - 1) / W * W; }

// from [rows, cols] -> to [cols, rows]; both sides are filled up to whole vectors
static void flip(const float* from, int64_t ld_from, int64_t rows, int64_t cols, float* to, int64_t ld_to) {
    for (int64_t i = 0; i < rows; i += W)
        for (int64_t j = 0; j < cols; j += W) turn(from + i * ld_from + j, ld_from, to + j * ld_to + i, ld_to);
}

// m <- mu m + g; the result is what is to be orthogonalised
static inline vec moved(vec g, float* momentum, float mu, bool nesterov, int64_t n) {
    const vec m = add_product(splat(mu), load_some(momentum, n), g);
    store_some(momentum, m, n);
    return nesterov ? add_product(splat(mu), m, g) : m;
}

struct Iteration {
    int64_t m = 0, n = 0, M = 0, N = 0, ldm = 0, ldn = 0;  // M, N: filled up; ld: no power of two, which caches dislike
    std::vector<float> y, next, turned, gram, poly;

    void shape(int64_t m_, int64_t n_) {
        if (m == m_ && n == n_) return;
        m = m_, n = n_, M = filled(m), N = filled(n), ldm = M + W, ldn = N + W;
        // what fills up is zero and stays zero
        for (auto* one : {&y, &next}) one->assign(M * ldn, 0.0f);
        for (auto* one : {&gram, &poly}) one->assign(M * ldm, 0.0f);
        turned.assign(N * ldm, 0.0f);
    }

    // Rows of the block as it lies in memory: [m, n], or [n, m] where it is tall
    float* rows_of_block(bool tall) { return tall ? turned.data() : y.data(); }
    int64_t ld(bool tall) const { return tall ? ldm : ldn; }

    void scale() {
        float square = 0;
        for (int64_t i = 0; i < m; i++) {
            vec sum{};
            for (int64_t c = 0; c < N; c += W) {
                const vec v = load(&y[i * ldn + c]);
                sum = add_product(v, v, sum);
            }
            square += total(sum);
        }
        const vec by = splat(1.0f / (std::sqrt(square) + TINY));
        for (int64_t i = 0; i < m; i++)
            for (int64_t c = 0; c < N; c += W) store(&y[i * ldn + c], load(&y[i * ldn + c]) * by);
    }

    // c = a b for a symmetric result, both [m, m] in the end: what lies below the panels on the diagonal is copied
    void symmetric(int64_t depth, const float* a, int64_t lda, const float* b, float* c) {
        for (int64_t p = 0; p < M; p += PANEL) {
            const int64_t end = std::min<int64_t>(M, p + PANEL);
            panel_product((end - p) / W, std::min(m, end), depth, a, lda, b + p, ldm, c + p, ldm);
        }
    }
    void mirror(float* c) {
        for (int64_t p = 0; p < M; p += PANEL)
            for (int64_t i = p + PANEL; i < M; i += W)
                for (int64_t j = p; j < p + PANEL; j += W) turn(c + j * ldm + i, ldm, c + i * ldm + j, ldm);
    }

    void step() {
        flip(y.data(), ldn, M, N, turned.data(), ldm);
        symmetric(n, y.data(), ldn, turned.data(), gram.data());
        mirror(gram.data());
        symmetric(m, gram.data(), ldm, gram.data(), poly.data());
        for (int64_t i = 0; i < m; i++) {
            for (int64_t c = i / PANEL * PANEL; c < M; c += W) {
                const int64_t at = i * ldm + c;
                store(&poly[at], add_product(splat(C), load(&poly[at]), splat(B) * load(&gram[at])));
            }
            poly[i * ldm + i] += A;
        }
        mirror(poly.data());
        for (int64_t p = 0; p < N; p += PANEL)
            panel_product(std::min<int64_t>(WIDE, (N - p) / W), m, m, poly.data(), ldm, y.data() + p, ldn, next.data() + p, ldn);
        std::swap(y, next);
    }

    void run(int steps, bool tall) {
        if (tall) flip(turned.data(), ldm, N, M, y.data(), ldn);
        scale();
        for (int s = 0; s < steps; s++) step();
        if (tall) flip(y.data(), ldn, M, N, turned.data(), ldm);
    }
};

// w <- decay w + rate factor x, the products rounded one after the other
static inline vec updated(vec w, vec x, float decay, float rate, float factor) {
    return add_product(splat(rate), x * splat(factor), w * splat(decay));
}

// Blocks of `rows` x `cols`, their rows ld apart; x: what is orthogonalised, out: the factor. Given momenta, x are gradients
// and `out` weights that are moved. square: sums of squares of the factors.
EXPORT void muon_blocks(int64_t count, const int64_t* rows, const int64_t* cols, const int64_t* ld, const float** x,
                        float** momentum, float** out, const float* rate, const float* factor, float* square, float mu,
                        int nesterov, float decay, int steps, int threads) {
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        Iteration work;
#pragma omp for schedule(dynamic, 1)
        for (int64_t b = 0; b < count; b++) {
            const int64_t R = rows[b], K = cols[b];
            const bool tall = R > K;
            work.shape(std::min(R, K), std::max(R, K));
            const int64_t apart = work.ld(tall);
            float* own = work.rows_of_block(tall);
            for (int64_t i = 0; i < R; i++)
                for (int64_t c = 0; c < K; c += W) {
                    const int64_t at = i * ld[b] + c;
                    vec v = load_some(x[b] + at, K - c);
                    if (momentum) v = moved(v, momentum[b] + at, mu, nesterov, K - c);
                    store(own + i * apart + c, v);
                }
            work.run(steps, tall);
            own = work.rows_of_block(tall);
            float sum = 0;
            for (int64_t i = 0; i < R; i++) {
                vec part{};
                for (int64_t c = 0; c < K; c += W) {
                    const int64_t at = i * ld[b] + c;
                    const vec v = load(own + i * apart + c);
                    part = add_product(v, v, part);
                    store_some(out[b] + at, momentum ? updated(load_some(out[b] + at, K - c), v, decay, rate[b], factor[b]) : v,
                               K - c);
                }
                sum += total(part);
            }
            if (square) square[b] = sum;
        }
    }
}

constexpr int64_t SLICE = 1 << 14;  // elements that a thread takes at once

// f(tensor, first element, elements) for slices of all tensors
template <class F>
static void slices(int64_t count, const int64_t* sizes, int threads, F f) {
    std::vector<std::pair<int64_t, int64_t>> all;
    for (int64_t t = 0; t < count; t++)
        for (int64_t i = 0; i < sizes[t]; i += SLICE) all.push_back({t, i});
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
#pragma omp for schedule(dynamic, 1)
        for (size_t s = 0; s < all.size(); s++)
            f(all[s].first, all[s].second, std::min(SLICE, sizes[all[s].first] - all[s].second));
    }
}

// the first half of `muon_blocks` alone: g becomes what is to be orthogonalised
EXPORT void muon_momentum(int64_t count, const int64_t* sizes, float** g, float** momentum, float mu, int nesterov, int threads) {
    slices(count, sizes, threads, [&](int64_t t, int64_t first, int64_t n) {
        for (int64_t i = 0; i < n; i += W) {
            float* at = g[t] + first + i;
            store_some(at, moved(load_some(at, n - i), momentum[t] + first + i, mu, nesterov, n - i), n - i);
        }
    });
}

// the second half alone, for any tensors of equal size
EXPORT void muon_apply(int64_t count, const int64_t* sizes, const float** x, float** w, float rate, float decay, int threads) {
    slices(count, sizes, threads, [&](int64_t t, int64_t first, int64_t n) {
        for (int64_t i = 0; i < n; i += W) {
            float* at = w[t] + first + i;
            store_some(at, updated(load_some(at, n - i), load_some(x[t] + first + i, n - i), decay, rate, 1.0f), n - i);
        }
    });
}

// first <- lerp(first, g, 1 - beta1); second <- beta2 second + (1 - beta2) g^2;
// w <- decay w - rate first / (sqrt(second) / root + eps)
EXPORT void adamw(int64_t count, const int64_t* sizes, const float** g, float** first_, float** second_, float** w, float beta1,
                  float beta2, float decay, float rate, float root, float eps, int threads) {
    slices(count, sizes, threads, [&](int64_t t, int64_t begin, int64_t n) {
        for (int64_t i = 0; i < n; i += W) {
            const int64_t at = begin + i, some = n - i;
            const vec grad = load_some(g[t] + at, some);
            const vec old = load_some(first_[t] + at, some);
            const vec first = add_product(splat(1.0f - beta1), grad - old, old);
            const vec second = add_product(splat(1.0f - beta2) * grad, grad, splat(beta2) * load_some(second_[t] + at, some));
            store_some(first_[t] + at, first, some);
            store_some(second_[t] + at, second, some);
            vec below;
            for (int l = 0; l < W; l++) below[l] = std::sqrt(second[l]);
            const vec step = first / add_product(below, splat(1.0f / root), splat(eps));
            store_some(w[t] + at, add_product(splat(-rate), step, splat(decay) * load_some(w[t] + at, some)), some);
        }
    });
}
