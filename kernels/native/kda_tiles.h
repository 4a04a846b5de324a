// Products of KDA's chunks with states on a processor's matrix units (AMX), for inputs in bfloat16. Every operand is held as
// two bfloat16, x = high + low to 2^-16 of x, and a b is taken for high high + low high + high low, summed in float32; states
// and all else stay float32. Numbers below 1e-38 are zero to these units, as they are everywhere in these files.
// Layouts: an A operand has its rows as they are; a B operand holds two rows side by side, [depth / 2, width, 2].
// Legend: K key width, V value width, C rows of a chunk, n its length.
#pragma once
#include <type_traits>
#include "kda_chunk.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__AVX512F__) && (__GNUC__ >= 12 || __clang_major__ >= 16)
#define KDA_TILES 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

// whether the processor has matrix units and the system lends them to this process
static inline bool tiles_ready() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 24 & 1) || !(d >> 22 & 1)) return false;
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* tile data */) == 0;
}

#define ON_TILES __attribute__((noinline, target("amx-tile,amx-bf16")))

// All eight tiles are 16 rows of 64 bytes, for this thread, while this lives
struct Tiles {
    Tiles() { begin(); }
    ~Tiles() { end(); }
    ON_TILES static void begin() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
            uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
        } shape;
        asm volatile("" ::"r"(&shape) : "memory");
        _tile_loadconfig(&shape);
    }
    ON_TILES static void end() { _tile_release(); }
};

// x in upper halves of words: what bfloat16 holds of it, and of the rest
struct Parts {
    words high, low;
};
static inline Parts parts(vec x) {
    const words high = (std::bit_cast<words>(x) + 0x8000u) & 0xffff0000u;
    return {high, std::bit_cast<words>(x - std::bit_cast<vec>(high)) + 0x8000u};
}

// An operand's two parts
struct Pair {
    bf16 *high, *low;
    Pair operator+(int64_t i) const { return {high + i, low + i}; }
};

static inline void put(bf16* to, words upper) {
    const halves h = __builtin_convertvector(upper >> 16, halves);
    std::memcpy(to, &h, sizeof h);
}
// W numbers of a row of an A operand
static inline void put_row(Pair to, vec x) {
    const Parts p = parts(x);
    put(to.high, p.high), put(to.low, p.low);
}
// W columns of two rows of a B operand
static inline void put_rows(Pair to, vec even, vec odd) {
    const Parts a = parts(even), b = parts(odd);
    const words high = a.high >> 16 | b.high, low = a.low >> 16 | (b.low & 0xffff0000u);
    std::memcpy(to.high, &high, sizeof high), std::memcpy(to.low, &low, sizeof low);
}
// 16 rows of 32 numbers -> the B operand that is their transpose, [16 pairs, 16, 2], its rows of pairs `stride` bfloat16 apart
static inline void put_turned(Pair to, int64_t stride, const float* rows, int64_t apart) {
    vec high[16], low[16];
    for (int i = 0; i < 16; i++) {
        alignas(64) bf16 h[32], l[32];
        for (int j = 0; j < 32; j += W) put_row({h + j, l + j}, load(rows + i * apart + j));
        std::memcpy(&high[i], h, 64), std::memcpy(&low[i], l, 64);
    }
    turn(high), turn(low);
    for (int i = 0; i < 16; i++) std::memcpy(to.high + i * stride, &high[i], 64), std::memcpy(to.low + i * stride, &low[i], 64);
}

// c [m, 32] = or += a b over `depth`; a [m, depth] with rows `lda` apart, b [depth / 2, 32, 2], rows of c 32 apart. m and depth
// are multiples of 32, or m is 16. Two by two tiles of c are held at a time. Without LOW a has one part alone.
template <bool ADDS, bool LOW = true>
ON_TILES static void tile_product(int m, int depth, Pair a, int64_t lda, Pair b, float* c) {
    asm volatile("" ::: "memory");
    for (int i = 0; i < m; i += 32) {
        float* const at = c + i * 32;
        const bool both = i + 16 < m;
        if (ADDS) {
            _tile_loadd(0, at, 128);
            _tile_loadd(1, at + 16, 128);
            if (both) {
                _tile_loadd(2, at + 512, 128);
                _tile_loadd(3, at + 528, 128);
            }
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        for (int k = 0; k < depth; k += 32) {
            const Pair own = a + (i * lda + k), other = own + 16 * lda, row = b + k * 32;
            _tile_loadd(6, row.high, 128);
            _tile_loadd(7, row.high + 32, 128);
            _tile_loadd(4, own.high, 2 * lda);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (LOW) {
                _tile_loadd(5, own.low, 2 * lda);
                _tile_dpbf16ps(0, 5, 6);
                _tile_dpbf16ps(1, 5, 7);
            }
            if (both) {
                if (LOW) {
                    _tile_loadd(5, other.low, 2 * lda);
                    _tile_dpbf16ps(2, 5, 6);
                    _tile_dpbf16ps(3, 5, 7);
                }
                _tile_loadd(5, other.high, 2 * lda);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
            _tile_loadd(6, row.low, 128);
            _tile_loadd(7, row.low + 32, 128);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (both) {
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, at, 128);
        _tile_stored(1, at + 16, 128);
        if (both) {
            _tile_stored(2, at + 512, 128);
            _tile_stored(3, at + 528, 128);
        }
    }
    asm volatile("" ::: "memory");
}

// c [m, 16] += a b over a depth of 32, rows of c `ldc` apart, b [16, 16, 2] with rows of pairs `ldb` bfloat16 apart
ON_TILES static void tile_column(int m, Pair a, int64_t lda, Pair b, int64_t ldb, float* c, int64_t ldc) {
    asm volatile("" ::: "memory");
    _tile_loadd(6, b.high, 2 * ldb);
    _tile_loadd(7, b.low, 2 * ldb);
    for (int i = 0; i < m; i += 16) {
        const Pair own = a + i * lda;
        _tile_loadd(0, c + i * ldc, 4 * ldc);
        _tile_loadd(4, own.high, 2 * lda);
        _tile_loadd(5, own.low, 2 * lda);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(0, 5, 6);
        _tile_dpbf16ps(0, 4, 7);
        _tile_stored(0, c + i * ldc, 4 * ldc);
    }
    asm volatile("" ::: "memory");
}

// What a chunk's products need on tiles beside the chunk itself. Panels are 32 wide, K is a multiple of 32.
struct Operands {
    static constexpr int PAUSE = 16;  // rows of a state after which memory is asked for
    const int K;
    std::vector<bf16> memory;
    // k+ and q+, then k=, in rows [C, K]; k= in columns, both parts in one row [K, 2 C]; k+ and q+ in columns [K, 2 C]
    Pair rows, ends, columns, both;
    Pair rowwise, paired;  // of a panel of a state: as A [K, 32] and as B [K / 2, 32, 2]
    Pair left, writes;     // [2 C, 32] as A; 2 C rows as B [C, 32, 2]
    Pair turned[3];        // C rows of a panel turned, [C, C, 2]

    Tiles tiles;

    explicit Operands(int width) : K(width), memory(2 * (3 * C * K + 2 * 2 * C * K + 2 * 32 * K + 4 * C * 32 + 3 * C * C * 2) + 32) {
        bf16* at = memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64 / sizeof(bf16);
        auto take = [&](int64_t size) {
            const Pair one{at, at + size};
            at += 2 * size;
            return one;
        };
        rows = take(2 * C * K), ends = take(C * K), columns = take(2 * C * K), both = take(2 * C * K);
        rowwise = take(32 * K), paired = take(32 * K), left = take(2 * C * 32), writes = take(2 * C * 32);
        for (Pair& one : turned) one = take(2 * C * C);
    }

    // for reading and advancing a state
    void enter(const Chunk& chunk, bool queries) {
        for (int64_t i = 0; i < (queries ? 2 : 1) * C * K; i += W) put_row(rows + i, load(chunk.kp + i));
        for (int c = 0; c < K; c++) {
            const Parts p = parts(load(chunk.turned + c * C) * splat(chunk.last[c]));
            put(columns.high + c * 2 * C, p.high), put(columns.high + c * 2 * C + C, p.low);
        }
    }

    // for gradients
    void enter_back(const Chunk& chunk) {
        for (int i = 0; i < C * K; i += W) put_row(ends + i, load(chunk.ke + i));
        for (int part = 0; part < 2; part++)
            for (int c = 0; c < K; c += W) {
                vec row[W];
                for (int i = 0; i < W; i++) row[i] = load((part ? chunk.qp : chunk.kp) + i * K + c);
                turn(row);
                for (int i = 0; i < W; i++) put_row(both + ((c + i) * 2 * C + part * C), row[i]);
            }
    }

    // U and behind it q+ S [C, 32] of the panel S, which is decayed into `next`
    void read(const Chunk& chunk, const float* S, float* next, float* U, bool queries, Ahead& ahead) {
        for (int c = 0; c < K; c += 2) {
            if (c % PAUSE == 0) ahead.ask();
            for (int j = 0; j < 32; j += W) {
                const vec even = load(S + c * 32 + j), odd = load(S + c * 32 + 32 + j);
                put_rows(paired + (c * 32 + 2 * j), even, odd);
                store(next + c * 32 + j, even * splat(chunk.last[c]));
                store(next + c * 32 + 32 + j, odd * splat(chunk.last[c + 1]));
            }
        }
        tile_product<false>(queries ? 2 * C : C, K, rows, K, paired, U);
    }

    // next += k=^T Y, whose rows from the chunk's length on are zeros
    void advance(const float* Y, float* next) {
        for (int i = 0; i < C; i += 2)
            for (int j = 0; j < 32; j += W) {
                const Pair one = writes + (i * 32 + 2 * j), two = one + C * 32;
                put_rows(one, load(Y + i * 32 + j), load(Y + i * 32 + 32 + j));
                std::memcpy(two.high, one.high, sizeof(vec)), std::memcpy(two.low, one.low, sizeof(vec));
            }
        tile_product<true, false>(K, 2 * C, columns, 2 * C, writes, next);
    }

    // dY += k= dS; sums a key channel of S dS are added up; dS is decayed
    void gradient_of_Y(const Chunk& chunk, const float* S, float* dS, float* products, float* dY, Ahead& ahead) {
        for (int c = 0; c < K; c += 2) {
            if (c % PAUSE == 0) ahead.ask();
            vec sum[2] = {load(products + c * W), load(products + c * W + W)};
            for (int j = 0; j < 32; j += W) {
                const int at = c * 32 + j;
                const vec even = load(dS + at), odd = load(dS + at + 32);
                sum[0] = add_product(load(S + at), even, sum[0]);
                sum[1] = add_product(load(S + at + 32), odd, sum[1]);
                put_rows(paired + (c * 32 + 2 * j), even, odd);
                put_row(rowwise + at, even), put_row(rowwise + (at + 32), odd);
                store(dS + at, even * splat(chunk.last[c]));
                store(dS + at + 32, odd * splat(chunk.last[c + 1]));
            }
            store(products + c * W, sum[0]), store(products + c * W + W, sum[1]);
        }
        tile_product<true>(C, K, ends, K, paired, dY);
    }

    // what `panel` of the gradients makes of Y, of left = [d(k+ S); d(q+ S)] and of the states; gradient_of_Y comes before
    void rest(const float* S, float* dS, const float* Y, const float* both_left, float* tiles, float* sums) {
        put_turned(turned[0], 2 * C, Y, 32);
        for (int part = 0; part < 2; part++) put_turned(turned[1 + part], 2 * C, both_left + part * C * 32, 32);
        for (int i = 0; i < 2 * C; i += 2)
            for (int j = 0; j < 32; j += W) {
                const vec even = load(both_left + i * 32 + j), odd = load(both_left + i * 32 + 32 + j);
                put_row(left + (i * 32 + j), even), put_row(left + (i * 32 + 32 + j), odd);
                put_rows(writes + (i * 32 + 2 * j), even, odd);
            }
        tile_column(2 * C, left, 32, turned[0], 2 * C, tiles, C);
        tile_column(K, rowwise, 32, turned[0], 2 * C, sums, C);
        for (int i = 0; i < 32 * K; i += W) put_row(rowwise + i, load(S + i));
        for (int part = 0; part < 2; part++)
            tile_column(K, rowwise, 32, turned[1 + part], 2 * C, sums + C * K + part * C, 2 * C);
        tile_product<true>(K, 2 * C, both, 2 * C, writes, dS);
    }
};
#else
static inline bool tiles_ready() { return false; }
struct Operands;
#endif

// in the place of Operands where tiles are not used
struct Nothing {
    explicit Nothing(int) {}
};
template <bool TILES>
using OperandsOf = std::conditional_t<TILES, Operands, Nothing>;
