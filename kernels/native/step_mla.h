// Latent attention of one new token, key and value matrices absorbed into query and output: the cache is read as it is.
// Source: Kimi K3 report (arXiv:2607.24653, section 2.1). Legend: R rank, P shared key width, V value width, S slots.
#pragma once
#include "step.h"

constexpr int64_t TILE = 64;  // slots that are scored before their values are summed

template <class T>
static void mla_project(const Layer& at, Board& board, const float* h, const Share& share) {
    const int64_t D = board.D, Q = at.q_b ? at.q_rank : at.heads * (at.nope + at.shared), R = at.rank + at.shared;
    const int64_t G = at.gate ? at.heads * at.value : 0, all = Q + R + G;
    const struct {
        const void* w;
        int64_t rows;
    } parts[] = {{at.q, Q}, {at.kv_a, R}, {at.gate, G}};
    int64_t offset = 0, begin = share.begin(all), end = share.end(all);
    for (const auto& part : parts) {
        const int64_t a = std::max(begin, offset), b = std::min(end, offset + part.rows);
        if (a < b)
            rows_of((const T*)part.w, D, h, D, a - offset, b - offset, board.N, board.joint.data() + offset, all);
        offset += part.rows;
    }
}

// queries from their own latent; a barrier belongs before and after
template <class T>
static void mla_queries(const Layer& at, Board& board, const Share& share) {
    const int64_t Q = at.heads * (at.nope + at.shared), G = at.gate ? at.heads * at.value : 0;
    const int64_t all = at.q_rank + at.rank + at.shared + G;
    std::vector<float> low(board.N * at.q_rank);
    for (int n = 0; n < board.N; n++)
        norm_row(board.joint.data() + n * all, at.q_norm, at.q_rank, at.latent_eps, low.data() + n * at.q_rank);
    rows_of((const T*)at.q_b, at.q_rank, low.data(), at.q_rank, share.begin(Q), share.end(Q), board.N, board.query.data(), Q);
}

// y[M, width] += p[M, count] rows[count, :width], rows `stride` apart, M at most 4
template <int M, class T>
static inline void gather(const float* p, int64_t ldp, const T* rows, int64_t stride, int64_t count, int64_t width, float* y,
                          int64_t ldy) {
    int64_t c = 0;
    for (; c + 4 * W <= width; c += 4 * W) {
        vec sum[M][4];
        for (int m = 0; m < M; m++)
            for (int j = 0; j < 4; j++) sum[m][j] = load(y + m * ldy + c + j * W);
        for (int64_t s = 0; s < count; s++) {
            vec row[4];
            for (int j = 0; j < 4; j++) row[j] = load(rows + s * stride + c + j * W);
            for (int m = 0; m < M; m++)
                for (int j = 0; j < 4; j++) sum[m][j] = add_product(splat(p[m * ldp + s]), row[j], sum[m][j]);
        }
        for (int m = 0; m < M; m++)
            for (int j = 0; j < 4; j++) store(y + m * ldy + c + j * W, sum[m][j]);
    }
    for (; c < width; c++)
        for (int m = 0; m < M; m++) {
            float sum = y[m * ldy + c];
            for (int64_t s = 0; s < count; s++) sum = add_product(p[m * ldp + s], up(rows[s * stride + c]), sum);
            y[m * ldy + c] = sum;
        }
}

template <class T>
static inline void gather_any(int M, const float* p, int64_t ldp, const T* rows, int64_t stride, int64_t count, int64_t width,
                              float* y, int64_t ldy) {
    if (M == 4)
        gather<4>(p, ldp, rows, stride, count, width, y, ldy);
    else if (M == 3)
        gather<3>(p, ldp, rows, stride, count, width, y, ldy);
    else if (M == 2)
        gather<2>(p, ldp, rows, stride, count, width, y, ldy);
    else
        gather<1>(p, ldp, rows, stride, count, width, y, ldy);
}

// rows [N, slots, R + P]: the cache; `past[n]` slots of stream n are filled. The new row is written by the first thread.
template <class T>
static void mla_heads(const Layer& at, Board& board, T* rows, int64_t slots, const int64_t* past, const Share& share) {
    const int64_t H = at.heads, R = at.rank, P = at.shared, V = at.value, K = at.nope + P, width = R + P;
    const int64_t Q = at.q_b ? at.q_rank : H * K, all = Q + width + (at.gate ? H * V : 0);
    const int64_t first = share.begin(board.N * H), last = share.end(board.N * H);
    std::vector<float> latent(R), query(4 * width), score(4 * TILE), sum(4 * R), out(4 * V);
    std::vector<T> fresh(width);
    for (int64_t n = 0; n < board.N; n++) {
        const bool writes = share.mine == 0;
        const int64_t from = std::max(first, n * H) - n * H, to = std::min(last, (n + 1) * H) - n * H;
        if (from >= to && !writes) continue;
        const float* kv = board.joint.data() + n * all + Q;
        norm_row(kv, at.kv_norm, R, at.latent_eps, latent.data());
        for (int64_t c = 0; c < R; c++) fresh[c] = down<T>(latent[c]);
        for (int64_t c = 0; c < P; c++) fresh[R + c] = down<T>(kv[R + c]);
        T* own = rows + n * slots * width;
        if (writes) std::memcpy(own + past[n] * width, fresh.data(), width * sizeof(T));
        for (int64_t h = from; h < to; h += 4) {
            const int M = std::min<int64_t>(4, to - h);
            std::fill(query.begin(), query.end(), 0.0f);
            std::fill(sum.begin(), sum.end(), 0.0f);
            float top[4], weight[4] = {};
            for (int m = 0; m < M; m++) {
                const float* q = at.q_b ? board.query.data() + n * H * K + (h + m) * K : board.joint.data() + n * all + (h + m) * K;
                float* mine = query.data() + m * width;
                gather<1>(q, 0, (const T*)at.kv_b + (h + m) * (at.nope + V) * R, R, at.nope, R, mine, 0);
                for (int64_t c = 0; c < P; c++) mine[R + c] = q[at.nope + c];
                for (int64_t c = 0; c < width; c++) mine[c] *= (float)at.scale;
                top[m] = -INFINITY;
            }
            // the new row last, from this thread's own copy; the softmax is kept up to date as tiles come in
            for (int64_t s = 0; s <= past[n];) {
                const bool newest = s == past[n];
                const int64_t count = newest ? 1 : std::min(TILE, past[n] - s);
                const T* tile = newest ? fresh.data() : own + s * width;
                rows_of(tile, width, query.data(), width, 0, count, M, score.data(), TILE);
                for (int m = 0; m < M; m++) {
                    float *p = score.data() + m * TILE, best = top[m], added = 0;
#pragma omp simd reduction(max : best)
                    for (int64_t i = 0; i < count; i++) best = std::max(best, p[i]);
                    const float keep = fast_exp(top[m] - best);
#pragma omp simd reduction(+ : added)
                    for (int64_t i = 0; i < count; i++) added += (p[i] = fast_exp(p[i] - best));
                    weight[m] = weight[m] * keep + added;
                    if (keep != 1.0f)
                        for (int64_t c = 0; c < R; c++) sum[m * R + c] *= keep;
                    top[m] = best;
                }
                gather_any(M, score.data(), TILE, tile, width, count, R, sum.data(), R);
                s += count;
            }
            for (int m = 0; m < M; m++) {
                for (int64_t c = 0; c < R; c++) sum[m * R + c] /= weight[m];
                float* y = board.mixed.data() + n * H * V + (h + m) * V;
                rows_of((const T*)at.kv_b + ((h + m) * (at.nope + V) + at.nope) * R, R, sum.data() + m * R, 0, 0, V, 1, y, 0);
                if (at.gate) {
                    const float* gate = kv + width + (h + m) * V;
                    for (int64_t c = 0; c < V; c++) y[c] *= fast_sigmoid(gate[c]);
                }
            }
        }
    }
}
