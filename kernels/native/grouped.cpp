// Routed experts without a gradient: every expert reads its tokens where they lie, and its intermediate values never leave
// the cache. One thread takes one expert after the other; its weights are laid out for the product first, which costs one
// part in as many as it has tokens. Legend: L width, I inner width, E experts, M rows in expert order.
#include "vector.h"

constexpr int NV = 4, PANEL = NV * W, MR = 6, DEPTH = 128, ROWS = 384;

// w [rows, cols] -> panels [rows / PANEL][cols][PANEL], the last one filled up with zeros
static void lay_out(const float* w, int64_t rows, int64_t cols, float* out) {
    for (int64_t p = 0; p < rows; p += PANEL, out += cols * PANEL) {
        const int64_t some = std::min<int64_t>(PANEL, rows - p), even = some - some % W, deep = cols - cols % W;
        if (some < PANEL) std::fill(out, out + cols * PANEL, 0.0f);
        for (int64_t k = 0; k < deep; k += W)
            for (int64_t j = 0; j < even; j += W) turn(w + (p + j) * cols + k, cols, out + k * PANEL + j, PANEL);
        for (int64_t j = 0; j < some; j++)
            for (int64_t k = j < even ? deep : 0; k < cols; k++) out[k * PANEL + j] = w[(p + j) * cols + k];
    }
}

// c[R, PANEL] (+)= a[R, depth] b[depth, PANEL]; one chain of additions a number, however many rows there are
template <int R>
static inline void tile(int64_t depth, const float* const* a, int64_t at, const float* b, bool add, float* c, int64_t ldc) {
    vec sum[R][NV];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < NV; j++) sum[i][j] = add ? load(c + i * ldc + j * W) : vec{};
    for (int64_t k = 0; k < depth; k++) {
        vec row[NV];
        for (int j = 0; j < NV; j++) row[j] = load(b + k * PANEL + j * W);
        for (int i = 0; i < R; i++) {
            const vec x = splat(a[i][at + k]);
            for (int j = 0; j < NV; j++) sum[i][j] = add_product(x, row[j], sum[i][j]);
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < NV; j++) store(c + i * ldc + j * W, sum[i][j]);
}

// c [n, ldc] = rows a times panels; ldc is the width filled up to whole panels
static void product(int64_t n, const float* const* a, int64_t depth, const float* panels, int64_t ldc, float* c) {
    for (int64_t p = 0; p < ldc; p += PANEL)
        for (int64_t k = 0; k < depth; k += DEPTH) {
            const int64_t deep = std::min<int64_t>(DEPTH, depth - k);
            const float* b = panels + (p / PANEL * depth + k) * PANEL;
            int64_t i = 0;
            for (; i + MR <= n; i += MR) tile<MR>(deep, a + i, k, b, k > 0, c + i * ldc + p, ldc);
            for (; i < n; i++) tile<1>(deep, a + i, k, b, k > 0, c + i * ldc + p, ldc);
        }
}

static int64_t whole_panels(int64_t n) { return (n + PANEL - 1) / PANEL * PANEL; }

// beta 0: SwiGLU; linear 0: no bound on the linear half
static void activate(const float* gate, const float* raise, int64_t I, float beta, float linear, float* y) {
    if (beta == 0) {
#pragma omp simd
        for (int64_t c = 0; c < I; c++) y[c] = gate[c] * fast_sigmoid(gate[c]) * raise[c];
        return;
    }
    const float a = 1.0f / beta, b = linear > 0 ? 1.0f / linear : 0.0f;
#pragma omp simd
    for (int64_t c = 0; c < I; c++) {
        const float wide = linear > 0 ? linear * fast_tanh(raise[c] * b) : raise[c];
        y[c] = beta * fast_tanh(gate[c] * a) * fast_sigmoid(gate[c]) * wide;
    }
}

// picked [M] experts -> rows in expert order, equal ones as they came: source [M] token of each row, at [M] row of each
// choice, offsets [E + 1]
EXPORT void expert_order(const int64_t* picked, int64_t M, int64_t k, int64_t E, int64_t* source, int64_t* at, int64_t* offsets) {
    std::fill(offsets, offsets + E + 1, 0);
    for (int64_t i = 0; i < M; i++) offsets[picked[i] + 1]++;
    for (int64_t e = 0; e < E; e++) offsets[e + 1] += offsets[e];
    std::vector<int64_t> next(offsets, offsets + E);
    for (int64_t i = 0; i < M; i++) {
        at[i] = next[picked[i]]++;
        source[at[i]] = i / k;
    }
}

// z [T, L]; source [M]: token of every row; offsets [E + 1]; w13 [E, 2I, L]; w2 [E, L, I]; out [M, L]
EXPORT void grouped_experts(float* z, int64_t* source, int64_t* offsets, float* w13, float* w2, float* out, int64_t E, int64_t L,
                            int64_t I, float beta, float linear, int threads) {
    const int64_t wide = whole_panels(2 * I), back = whole_panels(L);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> first(wide * L), second(back * I), gate_up(ROWS * wide), y(ROWS * I), result(back == L ? 0 : ROWS * back);
        std::vector<const float*> from(ROWS), inner(ROWS);
        for (int i = 0; i < ROWS; i++) inner[i] = y.data() + i * I;
#pragma omp for schedule(dynamic, 1)
        for (int64_t e = 0; e < E; e++) {
            if (offsets[e] == offsets[e + 1]) continue;
            lay_out(w13 + e * 2 * I * L, 2 * I, L, first.data());
            lay_out(w2 + e * L * I, L, I, second.data());
            for (int64_t at = offsets[e]; at < offsets[e + 1]; at += ROWS) {
                const int64_t n = std::min<int64_t>(ROWS, offsets[e + 1] - at);
                for (int64_t i = 0; i < n; i++) from[i] = z + source[at + i] * L;
                product(n, from.data(), L, first.data(), wide, gate_up.data());
                for (int64_t i = 0; i < n; i++)
                    activate(gate_up.data() + i * wide, gate_up.data() + i * wide + I, I, beta, linear, y.data() + i * I);
                float* to = back == L ? out + at * L : result.data();
                product(n, inner.data(), I, second.data(), back, to);
                if (back != L)
                    for (int64_t i = 0; i < n; i++) std::memcpy(out + (at + i) * L, to + i * back, L * sizeof(float));
            }
        }
    }
}
