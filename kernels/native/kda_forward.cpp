// Kimi Delta Attention forwards, in chunks of at most C tokens and for any log decay; `kda_chunk.h` has the equations.
#include "kda_tiles.h"

// q, k, g [T, H, K]; v, o [T, H, V]; beta [T, H]; cu [N + 1]; states [N, H, K, V] or null; kept [.., H, K, V] or null, laid
// out as `kept_before` says
template <class T, bool TILES>
static void forward(const Head<T>& all, const int* cu, int streams, float scale, const float* initial, float* final, T* o,
                    float* kept, int threads) {
    const int64_t H = all.H, K = all.K, V = all.V, size = K * V;
    const std::vector<int64_t> before = kept_before(cu, streams);
    const std::vector<int> tasks = longest_first(cu, streams, (int)H);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        Chunk chunk((int)K);
        OperandsOf<TILES> operands((int)K);
        Room room;
        float *const S = room.hold(size + 3 * C * PANEL), *const U = S + size, *const O = U + C * PANEL, *const Y = O + C * PANEL;
#pragma omp for schedule(dynamic, 1)
        for (int task = 0; task < streams * (int)H; task++) {
            const int64_t stream = tasks[task] / H, h = tasks[task] % H;
            if (initial)
                pack(initial + (stream * H + h) * size, (int)K, (int)V, LOWER, S);
            else
                std::fill(S, S + size, 0.0f);
            int64_t held = 0;
            for (int64_t t = cu[stream]; t < cu[stream + 1]; t += chunk.n) {
                if (kept && t - cu[stream] >= (held + 1) * SEGMENT)
                    std::memcpy(kept + ((before[stream] + held++) * H + h) * size, S, size * sizeof(float));
                const Head<T> at = all.from(t, h);
                const int n = chunk.fit(at.g, H * K, cu[stream + 1] - t);
                Ahead ahead;
                const Head<T> next = all.from(t + n, h);
                for (const T* rows : {next.q, next.k}) ahead.add(rows, H * K, (int)K, false);
                ahead.add(next.g, H * K, (int)K, false);
                ahead.add(next.v, H * V, (int)V, false);
                ahead.add(o + ((t + n) * H + h) * V, H * V, (int)V, true);
                ahead.spread((int)((V + PANEL - 1) / PANEL * (TILES ? K / 16 : (2 * C + K) / 8)));
                chunk.read<QUERIES>(at, n);
                if constexpr (TILES) operands.enter(chunk, true);
                T* out = o + (t * H + h) * V;
                panels((int)V, [&]<int NV>(int c) {
                    constexpr int w = NV * W;
                    float* const part = S + c * K;
                    // k+ and q+ are one matrix where a chunk is full, and so are U and O
                    if constexpr (TILES && NV == 2) {
                        operands.read(chunk, part, part, U, true, ahead);
                    } else if (n == C) {
                        product<NV, 0, ZERO>(2 * C, (int)K, chunk.kp, K, 1, part, w, U, w, nullptr, nullptr, &ahead);
                    } else {
                        product<NV, 0, ZERO>(n, (int)K, chunk.kp, K, 1, part, w, U, w);
                        product<NV, 0, ZERO>(n, (int)K, chunk.qp, K, 1, part, w, U + C * w, w);
                    }
                    float* const read = U + C * w;
                    solve<NV>(chunk, at.v + c, H * V, U, Y);
                    product<NV, C, ADD>(n, n, chunk.P, C, 1, Y, w, read, w);
                    for (int i = 0; i < n; i++)
                        for (int j = 0; j < w; j += W) store(out + i * H * V + c + j, load(read + i * w + j) * scale);
                    if constexpr (TILES && NV == 2) {
                        std::fill(Y + n * w, Y + C * w, 0.0f);
                        operands.advance(Y, part);
                    } else {
                        (n == C ? product<NV, 1, DECAY, C> : product<NV, 1, DECAY>)((int)K, n, chunk.ke, 1, K, Y, w, part, w,
                                                                                    part, chunk.last, &ahead);
                    }
                });
            }
            if (final) unpack(S, (int)K, (int)V, RAISE, final + (stream * H + h) * size);
        }
    }
}

template <class T, bool TILES = false>
static void run(void* q, void* k, void* v, float* g, float* beta, int* cu, int streams, int H, int K, int V, float scale,
                float* initial, float* final, void* o, float* kept, int threads) {
    forward<T, TILES>(Head<T>{(T*)q, (T*)k, (T*)v, g, beta, H, K, V}, cu, streams, scale, initial, final, (T*)o, kept, threads);
}

// Whether products may be given to matrix units here; that is when `form` may be 2
EXPORT int kda_tiles() { return tiles_ready(); }

// form: 0 float32, 1 bfloat16, 2 bfloat16 on matrix units, K and V being multiples of 32
EXPORT void kda_forward(int form, void* q, void* k, void* v, float* g, float* beta, int* cu, int streams, int H, int K,
                        int V, float scale, float* initial, float* final, void* o, float* kept, int threads) {
    auto* work = form == 0 ? run<float> : run<bf16>;
#ifdef KDA_TILES
    if (form == 2) work = run<bf16, true>;
#endif
    work(q, k, v, g, beta, cu, streams, H, K, V, scale, initial, final, o, kept, threads);
}
