// Vectors of the widest registers at hand, and dot products of matrix rows with vectors.
#pragma once
#include "common.h"

#ifdef __AVX512F__
constexpr int W = 16;
#else
constexpr int W = 8;
#endif
typedef float vec __attribute__((vector_size(W * 4)));
typedef uint32_t words __attribute__((vector_size(W * 4)));
typedef uint16_t halves __attribute__((vector_size(W * 2)));

static inline vec load(const float* p) {
    vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}
static inline vec load(const bf16* p) {
    halves h;
    std::memcpy(&h, p, sizeof h);
    return std::bit_cast<vec>(__builtin_convertvector(h, words) << 16);
}
static inline void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }

// all lanes x; told apart for the processor, which can read it from memory that way at no cost
static inline vec splat(float x) {
#if defined(__AVX512F__)
    return (vec)_mm512_set1_ps(x);
#elif defined(__AVX__)
    return (vec)_mm256_set1_ps(x);
#else
    return vec{} + x;
#endif
}

// c + a b, rounded once wherever the processor can: left to the compiler, that would differ from place to place
static inline vec add_product(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}
static inline float add_product(float a, float b, float c) {
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

// row i, W numbers at from(i) -> column i of `to`, whose rows are `stride` apart
template <class From>
static inline void turn(From from, float* to, int64_t stride) {
#if defined(__GNUC__) && !defined(__clang__)
    typedef int32_t lanes __attribute__((vector_size(W * 4)));
    vec row[W];
    for (int i = 0; i < W; i++) row[i] = load(from(i));
    for (int s = 1; s < W; s *= 2) {
        lanes low, high;
        for (int l = 0; l < W; l++) {
            low[l] = l & s ? W + l - s : l;
            high[l] = l & s ? W + l : l + s;
        }
        for (int i = 0; i < W; i++)
            if (!(i & s)) {
                const vec a = row[i], b = row[i + s];
                row[i] = __builtin_shuffle(a, b, low);
                row[i + s] = __builtin_shuffle(a, b, high);
            }
    }
    for (int j = 0; j < W; j++) store(to + j * stride, row[j]);
#else
    for (int i = 0; i < W; i++)
        for (int j = 0; j < W; j++) to[j * stride + i] = up(from(i)[j]);
#endif
}

// the same for rows `apart` apart
static inline void turn(const float* from, int64_t apart, float* to, int64_t stride) {
    turn([=](int i) { return from + i * apart; }, to, stride);
}

static inline float total(vec v) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)v);
#else
    float part[W], sum = 0;
    store(part, v);
    for (int i = 0; i < W / 2; i++) sum += part[i] + part[i + W / 2];
    return sum;
#endif
}

// one term of a sum of matrix products: rows of `w` are `cols` apart, vector n begins at x + n * stride
template <class T>
struct Term {
    const T* w;
    const float* x;
    int64_t cols, stride;
};

// out[r * N + n] = sum over terms of w[row + r] . x_n. Whatever R and N are, a result is made by the same additions in the
// same order, so that the bits of a stream do not depend on how many others are read with it. Few rows at a time, because
// the processor fetches ahead where memory is read in one direction.
template <int R, int N, class T>
static inline void dots(const Term<T>* terms, int count, int64_t row, float* out) {
    constexpr int J = 4;  // sums of every result, so that one addition need not wait for the last
    constexpr int64_t AHEAD = 4096 / sizeof(T);
    vec sum[R][N][J] = {};
    float rest[R][N] = {};
    for (int s = 0; s < count; s++) {
        const int64_t cols = terms[s].cols, stride = terms[s].stride;
        const T* w = terms[s].w + row * cols;
        const float* x = terms[s].x;
        int64_t c = 0;
        for (; c + J * W <= cols; c += J * W)
            for (int r = 0; r < R; r++) {
                for (size_t line = 0; line < J * W * sizeof(T); line += 64)
                    __builtin_prefetch((const char*)(w + r * cols + c + AHEAD) + line);
                for (int j = 0; j < J; j++) {
                    const vec mine = load(w + r * cols + c + j * W);
                    for (int n = 0; n < N; n++) {
                        vec& own = sum[r][n][j];
                        own = add_product(mine, load(x + n * stride + c + j * W), own);
                    }
                }
            }
        for (; c + W <= cols; c += W)
            for (int r = 0; r < R; r++) {
                const vec mine = load(w + r * cols + c);
                for (int n = 0; n < N; n++) sum[r][n][0] = add_product(mine, load(x + n * stride + c), sum[r][n][0]);
            }
        for (; c < cols; c++)
            for (int r = 0; r < R; r++)
                for (int n = 0; n < N; n++) rest[r][n] = add_product(up(w[r * cols + c]), x[n * stride + c], rest[r][n]);
    }
    for (int r = 0; r < R; r++)
        for (int n = 0; n < N; n++)
            out[r * N + n] = total((sum[r][n][0] + sum[r][n][1]) + (sum[r][n][2] + sum[r][n][3])) + rest[r][n];
}

template <int R, int N, class T>
static inline void place(const Term<T>* terms, int count, int64_t row, float* y, int64_t ldy) {
    float out[R * N];
    dots<R, N>(terms, count, row, out);
    for (int n = 0; n < N; n++)
        for (int r = 0; r < R; r++) y[n * ldy + row + r] = out[r * N + n];
}

// y[n * ldy + row] for rows [begin, end) and N vectors; rows are read from memory once
template <class T>
__attribute__((noinline)) static void rows_of(const Term<T>* terms, int count, int64_t begin, int64_t end, int N, float* y,
                                              int64_t ldy) {
    int64_t row = begin;
    if (N == 1) {
        for (; row + 2 <= end; row += 2) place<2, 1>(terms, count, row, y, ldy);
        for (; row < end; row++) place<1, 1>(terms, count, row, y, ldy);
        return;
    }
    std::vector<Term<T>> moved(terms, terms + count);
    for (; row < end; row++)
        for (int n = 0; n < N; n += 4) {
            for (int s = 0; s < count; s++) moved[s].x = terms[s].x + n * terms[s].stride;
            const int some = std::min(4, N - n);
            float* out = y + n * ldy;
            if (some == 4)
                place<1, 4>(moved.data(), count, row, out, ldy);
            else if (some == 3)
                place<1, 3>(moved.data(), count, row, out, ldy);
            else if (some == 2)
                place<1, 2>(moved.data(), count, row, out, ldy);
            else
                place<1, 1>(moved.data(), count, row, out, ldy);
        }
}

template <class T>
static inline void rows_of(const T* w, int64_t cols, const float* x, int64_t stride, int64_t begin, int64_t end, int N,
                           float* y, int64_t ldy) {
    const Term<T> one{w, x, cols, stride};
    rows_of(&one, 1, begin, end, N, y, ldy);
}
