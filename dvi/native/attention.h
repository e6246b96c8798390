/* Attention of neighbouring positions: the query heads of one key-value head, each over the keys up
   to its own position.

   Letters: G query heads a key-value head, D head width, P positions. A head sums over its keys in
   one order, whatever is computed beside it: its bits depend on its own query, keys and values. */
#pragma once
#include <math.h>
#include <string.h>

#include "vectors.h"

enum { MOST_HEADS = 4, MOST_VECTORS = 4, KEYS = 4 }; /* what is held in registers at a time */
enum { KEY_BLOCK = 64 };                              /* what stays in the first cache */

/* scores [g, padded] <- q . keys, g heads at once; rows past the last key exist and are dropped. */
INLINE void score_keys(int g, const float *q, const float *keys, int64_t num_keys, int64_t width,
                       float *scores, int64_t padded) {
    for (int64_t key = 0; key < num_keys; key += KEYS) {
        const float *at = keys + key * width;
        __m512 sums[MOST_HEADS][KEYS];
#pragma GCC unroll 4
        for (int head = 0; head < g; head++)
#pragma GCC unroll 4
            for (int k = 0; k < KEYS; k++) sums[head][k] = _mm512_setzero_ps();
        for (int64_t i = 0; i < width; i += LANES) {
            __m512 loaded[KEYS];
#pragma GCC unroll 4
            for (int k = 0; k < KEYS; k++) loaded[k] = _mm512_loadu_ps(at + k * width + i);
#pragma GCC unroll 4
            for (int head = 0; head < g; head++) {
                __m512 query = _mm512_loadu_ps(q + head * width + i);
#pragma GCC unroll 4
                for (int k = 0; k < KEYS; k++)
                    sums[head][k] = _mm512_fmadd_ps(query, loaded[k], sums[head][k]);
            }
        }
#pragma GCC unroll 4
        for (int head = 0; head < g; head++)
            _mm_storeu_ps(scores + head * padded + key,
                          sums4(sums[head][0], sums[head][1], sums[head][2], sums[head][3]));
    }
}

/* scores [padded] -> their softmax after `scale`, 0 past the last key. */
static void weigh(float *scores, int64_t num_keys, int64_t padded, float scale) {
    for (int64_t key = num_keys; key < padded; key++) scores[key] = -__builtin_inff();
    __m512 most = _mm512_loadu_ps(scores), total = _mm512_setzero_ps();
    for (int64_t key = LANES; key < padded; key += LANES)
        most = _mm512_max_ps(most, _mm512_loadu_ps(scores + key));
    const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (int64_t key = 0; key < padded; key += LANES) {
        __m512 below = _mm512_sub_ps(_mm512_loadu_ps(scores + key), largest);
        __m512 weight = exp16(_mm512_mul_ps(below, _mm512_set1_ps(scale)));
        _mm512_storeu_ps(scores + key, weight);
        total = _mm512_add_ps(total, weight);
    }
    const __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(total));
    for (int64_t key = 0; key < padded; key += LANES)
        _mm512_storeu_ps(scores + key, _mm512_mul_ps(_mm512_loadu_ps(scores + key), share));
}

/* out [g, width], its first `count` vectors, += weights [g, padded] . values. */
INLINE void mix_values(int g, int count, const float *weights, int64_t padded, const float *values,
                       int64_t num_keys, int64_t width, float *out) {
    __m512 sums[MOST_HEADS][MOST_VECTORS];
#pragma GCC unroll 4
    for (int head = 0; head < g; head++)
#pragma GCC unroll 4
        for (int i = 0; i < count; i++) sums[head][i] = _mm512_loadu_ps(out + head * width + i * LANES);
    for (int64_t key = 0; key < num_keys; key++) {
        __m512 loaded[MOST_VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < count; i++) loaded[i] = _mm512_loadu_ps(values + key * width + i * LANES);
#pragma GCC unroll 4
        for (int head = 0; head < g; head++) {
            __m512 weight = _mm512_set1_ps(weights[head * padded + key]);
#pragma GCC unroll 4
            for (int i = 0; i < count; i++)
                sums[head][i] = _mm512_fmadd_ps(weight, loaded[i], sums[head][i]);
        }
    }
#pragma GCC unroll 4
    for (int head = 0; head < g; head++)
#pragma GCC unroll 4
        for (int i = 0; i < count; i++) _mm512_storeu_ps(out + head * width + i * LANES, sums[head][i]);
}

INLINE void mix_heads(int g, const float *weights, int64_t padded, const float *values,
                      int64_t num_keys, int64_t width, float *out) {
    int64_t i = 0;
    for (; i + MOST_VECTORS * LANES <= width; i += MOST_VECTORS * LANES)
        mix_values(g, 4, weights, padded, values + i, num_keys, width, out + i);
    for (; i < width; i += LANES)
        mix_values(g, 1, weights, padded, values + i, num_keys, width, out + i);
}

#define WITH_CONSTANT_HEADS(g, part) \
    switch (g) {                     \
        case 1: part(1); break;      \
        case 2: part(2); break;      \
        case 3: part(3); break;      \
        default: part(4); break;     \
    }

typedef struct {
    int64_t positions, keys;  /* P, and how many keys the first position sees; each next one more */
    int64_t group, width;     /* G, D */
    int64_t q_step, out_step; /* floats from a position to the next */
} Piece;

/* q, out: [G, D] for each position; keys, values [.., D]; room: P G times the keys of the last
   position, rounded up to 16. */
static void attend(const Piece *piece, const float *q, const float *keys, const float *values,
                   float *room, float *out) {
    const int64_t width = piece->width, group = piece->group;
    const int64_t all = piece->keys + piece->positions - 1, padded = (all + LANES - 1) / LANES * LANES;
    const float scale = 1.0f / sqrtf(width);
    for (int64_t start = 0; start < all; start += KEY_BLOCK)
        for (int64_t p = 0; p < piece->positions; p++) {
            int64_t left = piece->keys + p - start, count = left < KEY_BLOCK ? left : KEY_BLOCK;
            for (int64_t g = 0; g < group; g += MOST_HEADS) {
                const float *at = q + p * piece->q_step + g * width;
                float *scores = room + (p * group + g) * padded + start;
#define PART(g) score_keys(g, at, keys + start * width, count, width, scores, padded)
                WITH_CONSTANT_HEADS(group - g, PART)
#undef PART
            }
        }
    for (int64_t start = 0; start < all; start += KEY_BLOCK)
        for (int64_t p = 0; p < piece->positions; p++) {
            int64_t left = piece->keys + p - start, count = left < KEY_BLOCK ? left : KEY_BLOCK;
            float *to = out + p * piece->out_step;
            if (start == 0) {
                memset(to, 0, group * width * sizeof(float));
                for (int64_t g = 0; g < group; g++)
                    weigh(room + (p * group + g) * padded, piece->keys + p, padded, scale);
            }
            for (int64_t g = 0; g < group; g += MOST_HEADS) {
                const float *weights = room + (p * group + g) * padded + start;
#define PART(g) mix_heads(g, weights, padded, values + start * width, count, width, at)
                float *at = to + g * width;
                WITH_CONSTANT_HEADS(group - g, PART)
#undef PART
            }
        }
}
