// Products of KDA's chunks with states, in float32. A state [K, V] is held in panels of PANEL value channels, [K, PANEL] each
// (a last one may be narrower): one panel and the rows of a chunk fit the first-level cache, which a whole state does not,
// and value channels never meet each other in the recurrence.
// Legend: K key width, V value width, C rows of a chunk, n its length.
#pragma once
#include "vector.h"

constexpr int C = 16;
constexpr int PANEL = 2 * W;
constexpr bool WIDE = W == 16;  // 32 vector registers instead of 16

// c - a b, rounded once wherever the processor can
static inline vec less_product(vec a, vec b, vec c) { return add_product(-a, b, c); }

static inline void store(bf16* p, vec v) {  // as `down` rounds
    const words u = std::bit_cast<words>(v), rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const words nan = (words)((u & 0x7fffffffu) > 0x7f800000u);
    const halves h = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0u), halves);
    std::memcpy(p, &h, sizeof h);
}

// row[i][j] <-> row[j][i]
static inline void turn(vec* row) {
#if defined(__AVX512F__)
    // pairs of rows, fours of rows, then what lies in quarters of registers: no step needs a table of lanes
    __m512 two[W], four[W];
    for (int i = 0; i < W; i += 2) {
        two[i] = _mm512_unpacklo_ps((__m512)row[i], (__m512)row[i + 1]);
        two[i + 1] = _mm512_unpackhi_ps((__m512)row[i], (__m512)row[i + 1]);
    }
    for (int i = 0; i < W; i += 4)
        for (int h = 0; h < 2; h++) {
            const __m512d a = (__m512d)two[i + h], b = (__m512d)two[i + 2 + h];
            four[i + 2 * h] = (__m512)_mm512_unpacklo_pd(a, b);
            four[i + 2 * h + 1] = (__m512)_mm512_unpackhi_pd(a, b);
        }
    for (int c = 0; c < 4; c++) {
        const __m512 a = _mm512_shuffle_f32x4(four[c], four[4 + c], 0x88), b = _mm512_shuffle_f32x4(four[c], four[4 + c], 0xdd);
        const __m512 d = _mm512_shuffle_f32x4(four[8 + c], four[12 + c], 0x88);
        const __m512 e = _mm512_shuffle_f32x4(four[8 + c], four[12 + c], 0xdd);
        row[c] = (vec)_mm512_shuffle_f32x4(a, d, 0x88);
        row[4 + c] = (vec)_mm512_shuffle_f32x4(b, e, 0x88);
        row[8 + c] = (vec)_mm512_shuffle_f32x4(a, d, 0xdd);
        row[12 + c] = (vec)_mm512_shuffle_f32x4(b, e, 0xdd);
    }
#else
    float flat[W * W];
    turn((const float*)row, W, flat, W);
    std::memcpy(row, flat, sizeof flat);
#endif
}

// Rows that will be read or written soon, asked for a few cache lines at a time while a product is computed: asked for at once
// they would wait for each other. They may lie outside of their tensor, for nothing is read.
struct Ahead {
    struct Rows {
        const char* at;
        int64_t stride;
        int lines;
        bool written;
    } rows[8];
    int count = 0, which = 0, row = 0, line = 0, step = 0, total = 0;

    template <class T>
    void add(const T* at, int64_t stride, int width, bool written) {
        rows[count++] = {(const char*)at, stride * (int64_t)sizeof(T), (width * (int)sizeof(T) + 63) / 64, written};
        total += C * rows[count - 1].lines;
    }
    void spread(int pauses) { step = total / std::max(1, pauses) + 1; }
    void ask() {
        for (int i = 0; i < step && which < count; i++) {
            const Rows& r = rows[which];
            const char* p = r.at + row * r.stride + line * 64;
            if (r.written)
                __builtin_prefetch(p, 1, 3);
            else
                __builtin_prefetch(p, 0, 2);
            if (++line < r.lines) continue;
            line = 0;
            if (++row < C) continue;
            row = 0, which++;
        }
    }
};

// work(i) for i from `begin` to n; written out where N rows are known beforehand, so that numbers stay in registers
template <int N, class Work>
static inline __attribute__((always_inline)) void each(int begin, int n, Work work) {
    if constexpr (N > 0) {
#pragma GCC unroll 16
        for (int i = 0; i < N; i++)
            if (i >= begin) work(i);
    } else {
        for (int i = begin; i < n; i++) work(i);
    }
}

// A product begins from nothing, from what lies in c, or from that times a number a row
enum Begin { ZERO, ADD, DECAY };

// c[MR, NV * W] = begin + a b with a(i, k) = a[i * ra + k * ca]; rows of b are ldb apart, those of c and `from` ldc. Every
// number is one chain of additions, the same however many rows there are. RA and DEPTH: ra and depth where they
// are known beforehand, else 0.
template <int MR, int NV, int RA, Begin B, int DEPTH>
static inline __attribute__((always_inline)) void block(int depth, const float* a, int64_t ra, int64_t ca, const float* b,
                                                        int ldb, float* c, int ldc, const float* from, const float* decay) {
    if (RA) ra = RA;
    if (DEPTH) depth = DEPTH;
    vec sum[MR][NV];
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) {
            if (B == ZERO) sum[i][j] = vec{};
            if (B == ADD) sum[i][j] = load(c + i * ldc + j * W);
            if (B == DECAY) sum[i][j] = load(from + i * ldc + j * W) * splat(decay[i]);
        }
    // a pointer for four rows each: the addresses of these are then p, p + ra, p + 2 ra and p + 3 ra without arithmetic
    const float* four[(MR + 3) / 4];
    for (int i = 0; i < (MR + 3) / 4; i++) four[i] = a + 4 * i * ra;
    const int64_t thrice = 3 * ra;
#pragma GCC unroll 4
    for (int k = 0; k < depth; k++) {
        vec row[NV];
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) row[j] = load(b + (int64_t)k * ldb + j * W);
#pragma GCC unroll 16
        for (int i = 0; i < MR; i++) {
            const float* p = four[i / 4];
            const vec x = splat(i % 4 == 0 ? p[0] : i % 4 == 1 ? p[ra] : i % 4 == 2 ? p[2 * ra] : p[thrice]);
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) sum[i][j] = add_product(x, row[j], sum[i][j]);
        }
        for (int i = 0; i < (MR + 3) / 4; i++) four[i] += ca;
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) store(c + i * ldc + j * W, sum[i][j]);
}

// block after block of m rows
template <int NV, int RA, Begin B, int DEPTH = 0>
__attribute__((noinline)) static void product(int m, int depth, const float* a, int64_t ra, int64_t ca, const float* b, int ldb, float* c, int ldc,
                    const float* from = nullptr, const float* decay = nullptr, Ahead* ahead = nullptr) {
    constexpr int MR = WIDE ? (NV == 1 ? 16 : 8) : 4;  // sums enough to hide what an addition waits for
    int i = 0;
    auto some = [&]<int R>() __attribute__((always_inline)) {
        for (; i + R <= m; i += R) {
            if (ahead) ahead->ask();
            block<R, NV, RA, B, DEPTH>(depth, a + i * (RA ? RA : ra), ra, ca, b, ldb, c + (int64_t)i * ldc, ldc,
                                B == DECAY ? from + (int64_t)i * ldc : nullptr, B == DECAY ? decay + i : nullptr);
        }
    };
    some.template operator()<MR>();
    if (MR > 4) some.template operator()<4>();
    some.template operator()<1>();
}

// work.operator()<NV>(first channel, NV * W) for every panel of `width` channels, a multiple of 16
template <class Work>
static inline void panels(int width, Work work) {
    int at = 0;
    for (; at + PANEL <= width; at += PANEL) work.template operator()<2>(at);
    if (at < width) work.template operator()<1>(at);
}

// a [K, V] matrix times a number -> panels, and back
static void pack(const float* rows, int K, int V, float by, float* to) {
    panels(V, [&]<int NV>(int at) {
        for (int c = 0; c < K; c++)
            for (int j = 0; j < NV * W; j += W) store(to + at * K + c * NV * W + j, load(rows + c * V + at + j) * by);
    });
}
static void unpack(const float* from, int K, int V, float by, float* rows) {
    panels(V, [&]<int NV>(int at) {
        for (int c = 0; c < K; c++)
            for (int j = 0; j < NV * W; j += W) store(rows + c * V + at + j, load(from + at * K + c * NV * W + j) * by);
    });
}

// C rows `apart` -> width columns: to[width, C], whose rows are `stride` apart
static inline void turn_rows(const float* from, int64_t apart, int width, float* to, int64_t stride) {
    for (int i = 0; i < C; i += W)
        for (int c = 0; c < width; c += W) {
            vec row[W];
            for (int j = 0; j < W; j++) row[j] = load(from + (i + j) * apart + c);
            turn(row);
            for (int j = 0; j < W; j++) store(to + (c + j) * stride + i, row[j]);
        }
}

// the other way: from[width, C] -> C rows `apart`
static inline void turn_columns(const float* from, int64_t stride, int width, float* to, int64_t apart) {
    for (int i = 0; i < C; i += W)
        for (int c = 0; c < width; c += W) {
            vec row[W];
            for (int j = 0; j < W; j++) row[j] = load(from + (c + j) * stride + i);
            turn(row);
            for (int j = 0; j < W; j++) store(to + (i + j) * apart + c, row[j]);
        }
}
