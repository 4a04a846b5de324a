// Matrix products of float32 that stay in a core's cache: tiles of registers over operands that lie where they lie.
// A row of `a` is broadcast, a row of `b` is read in vectors, so neither has to be laid out anew when b's rows are short
// panels. Every number is one chain of additions over the depth, whatever tile it falls into.
#pragma once
#include "vector.h"

#ifdef __AVX512F__
constexpr int WIDE = 4;
constexpr int tall(int vectors) { return vectors == 4 ? 6 : vectors == 3 ? 8 : 12; }
#else
constexpr int WIDE = 2;
constexpr int tall(int) { return 6; }
#endif
constexpr int PANEL = WIDE * W;  // columns that a tile takes at once
constexpr int DEPTH = 128;       // rows of a panel that stay in the first cache

// c[R, NV * W] (+)= a[R, depth] b[depth, NV * W]
template <int R, int NV>
static inline void tile(int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, bool add, float* c, int64_t ldc) {
    vec sum[R][NV];
    for (int i = 0; i < R; i++)
        for (int j = 0; j < NV; j++) sum[i][j] = add ? load(c + i * ldc + j * W) : vec{};
    for (int64_t k = 0; k < depth; k++) {
        vec row[NV];
        for (int j = 0; j < NV; j++) row[j] = load(b + k * ldb + j * W);
        for (int i = 0; i < R; i++) {
            const vec x = splat(a[i * lda + k]);
            for (int j = 0; j < NV; j++) sum[i][j] = add_product(x, row[j], sum[i][j]);
        }
    }
    for (int i = 0; i < R; i++)
        for (int j = 0; j < NV; j++) store(c + i * ldc + j * W, sum[i][j]);
}

template <int NV>
static void strip(int64_t rows, int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb, bool add, float* c,
                  int64_t ldc) {
    int64_t i = 0;
    for (; i + tall(NV) <= rows; i += tall(NV)) tile<tall(NV), NV>(depth, a + i * lda, lda, b, ldb, add, c + i * ldc, ldc);
    for (; i + 4 <= rows; i += 4) tile<4, NV>(depth, a + i * lda, lda, b, ldb, add, c + i * ldc, ldc);
    for (; i < rows; i++) tile<1, NV>(depth, a + i * lda, lda, b, ldb, add, c + i * ldc, ldc);
}

// c[rows, vectors * W] = a[rows, depth] b[depth, vectors * W], at most a panel wide
static inline void panel_product(int vectors, int64_t rows, int64_t depth, const float* a, int64_t lda, const float* b, int64_t ldb,
                                 float* c, int64_t ldc) {
    for (int64_t k = 0; k < depth; k += DEPTH) {
        const int64_t deep = std::min<int64_t>(DEPTH, depth - k);
        const float *left = a + k, *right = b + k * ldb;
        switch (vectors) {
            case 1: strip<1>(rows, deep, left, lda, right, ldb, k > 0, c, ldc); break;
            case 2: strip<2>(rows, deep, left, lda, right, ldb, k > 0, c, ldc); break;
#ifdef __AVX512F__
            case 3: strip<3>(rows, deep, left, lda, right, ldb, k > 0, c, ldc); break;
            case 4: strip<4>(rows, deep, left, lda, right, ldb, k > 0, c, ldc); break;
#endif
        }
    }
}
