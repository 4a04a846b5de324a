// One new token for each of a few streams through all layers, in one call; and the product of a matrix with a few rows.
#include "step_ffn.h"
#include "step_kda.h"
#include "step_mla.h"

// The residual stream of one thread, float32; all threads hold the same numbers.
struct Stream {
    int N;
    int64_t D;
    float eps;
    bool empty = false;  // right after a snapshot: the next update begins the sum
    std::vector<float> bank, run, h, score;
    int64_t blocks = 0;

    Stream(int N_, int64_t D_, float eps_, int64_t most) : N(N_), D(D_), eps(eps_), bank(most * N_ * D_), run(N_ * D_), h(N_ * D_), score(most + 1) {}

    void add(const float* update) {
        for (int64_t i = 0; i < N * D; i++) run[i] = empty ? update[i] : run[i] + update[i];
        empty = false;
    }

    // h = norm * m / rms(m), m the softmax mix of the snapshots and the running sum, or that sum alone
    void read(const float* query, const float* norm) {
        for (int n = 0; n < N; n++) {
            float *y = h.data() + n * D, top = -INFINITY, sum = 0;
            if (!query || !blocks) {
                norm_row(run.data() + n * D, norm, D, eps, y);
                continue;
            }
            auto source = [&](int64_t i) { return (i < blocks ? bank.data() + i * N * D : run.data()) + n * D; };
            for (int64_t i = 0; i <= blocks; i++) {
                const float* x = source(i);
                float dot = 0, square = 0;
#pragma omp simd reduction(+ : dot, square)
                for (int64_t c = 0; c < D; c++) {
                    dot += query[c] * x[c];
                    square += x[c] * x[c];
                }
                score[i] = dot / std::sqrt(square / D + eps);
                top = std::max(top, score[i]);
            }
            for (int64_t i = 0; i <= blocks; i++) sum += (score[i] = std::exp(score[i] - top));
            std::fill(y, y + D, 0.0f);
            for (int64_t i = 0; i <= blocks; i++) {
                const float *x = source(i), share = score[i] / sum;
#pragma omp simd
                for (int64_t c = 0; c < D; c++) y[c] += share * x[c];
            }
            norm_row(y, norm, D, eps, y);
        }
    }

    void snapshot() {
        std::copy(run.begin(), run.end(), bank.begin() + blocks++ * N * D);
        empty = true;
    }
};

template <class T>
static void through(const Layer* layers, int count, const T* x, T* y, const float* norm, const float* query, float eps,
                    float l2_eps, void** first, void** second, const int64_t* past, int N, int64_t D, int threads) {
    Board board{N, D, {}, {}, {}, {}, {}, {}, {}};
    int64_t joint = 0, mixed = 0, wide = 0, inner = 0, latent = 0, experts = 0, blocks = 0;
    for (int i = 0; i < count; i++) {
        const Layer& at = layers[i];
        const int64_t keys = at.heads * (at.nope + at.shared);
        joint = std::max(joint, at.full_attention ? std::max(keys, at.q_rank) + at.rank + at.shared + at.heads * at.value
                                                  : kda_columns(at));
        mixed = std::max(mixed, at.heads * (at.full_attention ? at.value : at.width));
        wide = std::max({wide, keys, at.latent});
        inner = std::max(inner, at.dense + at.picks * at.inner);
        latent = std::max(latent, at.latent);
        experts = std::max(experts, at.experts);
        blocks += at.snapshot;
    }
    board.joint.resize(N * joint);
    board.mixed.resize(N * mixed);
    board.update.resize(N * D);
    board.query.resize(N * wide);
    board.inner.resize(N * inner);
    board.latent.resize(N * latent);
    board.score.resize(N * experts);
#pragma omp parallel num_threads(threads)
    {
        const TinyIsZero tiny;
        const Share share{omp_get_thread_num(), omp_get_num_threads()};
        Stream stream(N, D, eps, blocks);
        for (int64_t i = 0; i < N * D; i++) stream.run[i] = up(x[i]);
        for (int i = 0; i < count; i++) {
            const Layer& at = layers[i];
            if (i) stream.add(board.update.data());
            stream.read(at.mixer_query, at.mixer_norm);
            if (at.snapshot) stream.snapshot();
            if (at.full_attention) {
                mla_project<T>(at, board, stream.h.data(), share);
                meet(share);
                if (at.q_b) {
                    mla_queries<T>(at, board, share);
                    meet(share);
                }
                mla_heads(at, board, (T*)first[i], (int64_t)second[i], past, share);
            } else {
                kda_project<T>(at, board, stream.h.data(), share);
                meet(share);
                kda_heads(at, board, (T*)second[i], (float*)first[i], l2_eps, share);
            }
            meet(share);
            const int64_t C = at.heads * (at.full_attention ? at.value : at.width);
            rows_of((const T*)at.out, C, board.mixed.data(), C, share.begin(D), share.end(D), N, board.update.data(), D);
            meet(share);
            stream.add(board.update.data());
            stream.read(at.ffn_query, at.ffn_norm);
            // every thread has read the update before any writes the next one: a barrier stands inside
            Ffn<T>(at, board, share).run(stream.h.data());
            meet(share);
        }
        stream.add(board.update.data());
        stream.read(query, norm);
        if (share.mine == 0)
            for (int64_t i = 0; i < N * D; i++) y[i] = down<T>(stream.h[i]);
    }
}

EXPORT void trunk_step(int half, const Layer* layers, int count, void* x, void* y, float* norm, float* query, float eps,
                       float l2_eps, void** first, void** second, int64_t* past, int N, int64_t D, int threads) {
    if (half)
        through(layers, count, (bf16*)x, (bf16*)y, norm, query, eps, l2_eps, first, second, past, N, D, threads);
    else
        through(layers, count, (float*)x, (float*)y, norm, query, eps, l2_eps, first, second, past, N, D, threads);
}

EXPORT int64_t layer_bytes() { return sizeof(Layer); }

// y [N, rows] float32 = x [N, cols] w^T
template <class T>
static void few_rows(const T* w, const T* x, float* y, int64_t rows, int64_t cols, int N, int threads) {
    std::vector<float> wide(N * cols);
    for (int64_t i = 0; i < N * cols; i++) wide[i] = up(x[i]);
#pragma omp parallel num_threads(threads)
    {
        const Share share{omp_get_thread_num(), omp_get_num_threads()};
        rows_of(w, cols, wide.data(), cols, share.begin(rows), share.end(rows), N, y, rows);
    }
}

EXPORT void few_rows_product(int half, void* w, void* x, float* y, int64_t rows, int64_t cols, int N, int threads) {
    if (half)
        few_rows((const bf16*)w, (const bf16*)x, y, rows, cols, N, threads);
    else
        few_rows((const float*)w, (const float*)x, y, rows, cols, N, threads);
}
