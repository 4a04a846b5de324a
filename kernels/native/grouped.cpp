// Routed experts without a gradient: a panel of one expert's tokens is turned on its side, so that the expert's matrices are
// read where they lie, and goes through all three products without leaving the cache. Panels are the units of work.
// Legend: L width, I inner width, E experts, M rows in expert order.
#include "products.h"

// beta 0: SwiGLU; linear 0: no bound on the linear half
static void activate(const float* gate, const float* raise, int64_t n, float beta, float linear, float* y) {
    if (beta == 0) {
#pragma omp simd
        for (int64_t c = 0; c < n; c++) y[c] = gate[c] * fast_sigmoid(gate[c]) * raise[c];
        return;
    }
    const float a = 1.0f / beta, b = linear > 0 ? 1.0f / linear : 0.0f;
#pragma omp simd
    for (int64_t c = 0; c < n; c++) {
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

// `count` rows [L] -> panel [L, PANEL], filled up with zeros to whole vectors
template <class T>
static void gather(const T* z, const int64_t* source, int64_t count, int64_t L, float* panel) {
    const int64_t even = L - L % W;
    for (int64_t i = 0; i < count; i += W) {
        const int64_t some = std::min<int64_t>(W, count - i);
        // lanes of nobody repeat the last row: any number will do, and a row is at hand
        const T* row[W];
        for (int64_t j = 0; j < W; j++) row[j] = z + source[i + std::min(j, some - 1)] * L;
        for (int64_t c = 0; c < even; c += W) turn([&](int j) { return row[j] + c; }, panel + c * PANEL + i, PANEL);
        for (int64_t c = even; c < L; c++)
            for (int j = 0; j < W; j++) panel[c * PANEL + i + j] = up(row[j][c]);
    }
}

// panel [L, PANEL] -> `count` rows [L]
template <class T>
static void scatter(const float* panel, int64_t count, int64_t L, T* out) {
    const int64_t even = L - L % W;
    float square[W * W];
    for (int64_t i = 0; i < count; i += W) {
        const int64_t some = std::min<int64_t>(W, count - i);
        for (int64_t c = 0; c < even; c += W) {
            turn([&](int j) { return panel + (c + j) * PANEL + i; }, square, W);
            for (int64_t j = 0; j < some; j++)
#pragma omp simd
                for (int l = 0; l < W; l++) out[(i + j) * L + c + l] = down<T>(square[j * W + l]);
        }
        for (int64_t j = 0; j < some; j++)
            for (int64_t c = even; c < L; c++) out[(i + j) * L + c] = down<T>(panel[c * PANEL + i + j]);
    }
}

struct Piece {
    int64_t expert, row, count;
};

// panels of all experts, those of one expert as equally wide as whole vectors allow
static std::vector<Piece> pieces(const int64_t* offsets, int64_t E) {
    std::vector<Piece> all;
    for (int64_t e = 0; e < E; e++) {
        const int64_t begin = offsets[e], rows = offsets[e + 1] - begin, vectors = (rows + W - 1) / W;
        const int64_t panels = (vectors + WIDE - 1) / WIDE;
        for (int64_t p = 0; p < panels; p++) {
            const int64_t first = vectors * p / panels * W, end = std::min(rows, vectors * (p + 1) / panels * W);
            all.push_back({e, begin + first, end - first});
        }
    }
    return all;
}

// float32 matrices are read where they are; others are brought there first
static inline const float* wide_rows(const float* w, int64_t, float*) { return w; }
static inline const float* wide_rows(const bf16* w, int64_t n, float* out) {
#pragma omp simd
    for (int64_t i = 0; i < n; i++) out[i] = up(w[i]);
    return out;
}

template <class T>
static void grouped(const T* z, const int64_t* source, const int64_t* offsets, const T* w13, const T* w2, T* out, int64_t E,
                    int64_t L, int64_t I, float beta, float linear, int threads) {
    const std::vector<Piece> all = pieces(offsets, E);
    const int64_t copy = std::is_same_v<T, float> ? 0 : 2 * I * L;
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        std::vector<float> x(L * PANEL), gate_up(2 * I * PANEL), y(I * PANEL), result(L * PANEL), first(copy), second(copy / 2);
        int64_t held = -1;
        const float *up_rows = nullptr, *down_rows = nullptr;
#pragma omp for schedule(dynamic, 1)
        for (const Piece& piece : all) {
            if (held != piece.expert) {
                held = piece.expert;
                up_rows = wide_rows(w13 + held * 2 * I * L, 2 * I * L, first.data());
                down_rows = wide_rows(w2 + held * I * L, I * L, second.data());
            }
            const int vectors = (piece.count + W - 1) / W;
            gather(z, source + piece.row, piece.count, L, x.data());
            panel_product(vectors, 2 * I, L, up_rows, L, x.data(), PANEL, gate_up.data(), PANEL);
            if (vectors == WIDE)
                activate(gate_up.data(), gate_up.data() + I * PANEL, I * PANEL, beta, linear, y.data());
            else
                for (int64_t c = 0; c < I; c++)
                    activate(&gate_up[c * PANEL], &gate_up[(c + I) * PANEL], vectors * W, beta, linear, &y[c * PANEL]);
            panel_product(vectors, L, I, down_rows, I, y.data(), PANEL, result.data(), PANEL);
            scatter(result.data(), piece.count, L, out + piece.row * L);
        }
    }
}

// z [T, L]; source [M]: token of every row; offsets [E + 1]; w13 [E, 2I, L]; w2 [E, L, I]; out [M, L]
EXPORT void grouped_experts(int half, void* z, int64_t* source, int64_t* offsets, void* w13, void* w2, void* out, int64_t E,
                            int64_t L, int64_t I, float beta, float linear, int threads) {
    if (half)
        grouped((bf16*)z, source, offsets, (bf16*)w13, (bf16*)w2, (bf16*)out, E, L, I, beta, linear, threads);
    else
        grouped((float*)z, source, offsets, (float*)w13, (float*)w2, (float*)out, E, L, I, beta, linear, threads);
}
