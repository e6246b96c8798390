/* The largest of many logits, and the mass of all, in two passes over them. */
#include "vectors.h"

enum { COLUMN = 64 }; /* logits whose largest is looked at first */

/* Whole numbers in the order of the floats, both zeros alike. */
INLINE __m512i in_order(__m512 x) {
    __m512i bits = _mm512_castps_si512(_mm512_add_ps(x, _mm512_setzero_ps()));
    __m512i negative = _mm512_srai_epi32(bits, 31);
    return _mm512_xor_si512(bits, _mm512_srli_epi32(negative, 1));
}

/* The largest whole number that `count` of keys [n] reach; n is a multiple of 16. */
static int32_t reached(const int32_t *keys, int64_t n, int64_t count) {
    int64_t low = INT32_MIN, high = INT32_MAX;
    while (low < high) {
        int64_t middle = (low + high + 1) >> 1, found = 0;
        __m512i border = _mm512_set1_epi32((int32_t)middle);
        for (int64_t i = 0; i < n; i += LANES) {
            __mmask16 there = _mm512_cmpge_epi32_mask(_mm512_loadu_si512(keys + i), border);
            found += __builtin_popcount(there);
        }
        if (found >= count) low = middle;
        else high = middle - 1;
    }
    return (int32_t)low;
}

/* ids <- the ids of row [size] among which its `count` largest are, ascending; gives how many.
   `mass` <- the sum of e^(x - largest), with the largest before it. ids has room for `size`, keys
   for size / 64 rounded up to 16. */
int64_t dvi_top(const float *row, int64_t size, int64_t count, int32_t *ids, int32_t *keys,
                float *mass) {
    const __m512 none = _mm512_set1_ps(-__builtin_inff());
    const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int64_t columns = size / COLUMN, found = 0;
    __m512 most = none, total = _mm512_setzero_ps();
    for (int64_t column = 0; column < columns; column++) {
        const float *x = row + column * COLUMN;
        __m512 a = _mm512_max_ps(_mm512_loadu_ps(x), _mm512_loadu_ps(x + 16));
        __m512 b = _mm512_max_ps(_mm512_loadu_ps(x + 32), _mm512_loadu_ps(x + 48));
        keys[column] = _mm512_reduce_max_epi32(in_order(_mm512_max_ps(a, b)));
    }
    for (int64_t i = columns; i % LANES; i++) keys[i] = INT32_MIN;
    for (int64_t i = 0; i < size; i += LANES) {
        __mmask16 there = size - i < LANES ? (__mmask16)((1 << (size - i)) - 1) : 0xFFFF;
        most = _mm512_max_ps(most, _mm512_mask_loadu_ps(none, there, row + i));
    }
    int32_t border = INT32_MIN;
    if (columns >= count) border = reached(keys, (columns + LANES - 1) / LANES * LANES, count);
    const __m512i least = _mm512_set1_epi32(border);
    const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(most));
    for (int64_t i = 0; i < size; i += LANES) {
        __mmask16 there = size - i < LANES ? (__mmask16)((1 << (size - i)) - 1) : 0xFFFF;
        __m512 x = _mm512_mask_loadu_ps(none, there, row + i);
        __mmask16 kept = _mm512_mask_cmpge_epi32_mask(there, in_order(x), least);
        if (kept) {
            __m512i at = _mm512_add_epi32(_mm512_set1_epi32((int32_t)i), steps);
            _mm512_mask_compressstoreu_epi32(ids + found, kept, at);
            found += __builtin_popcount(kept);
        }
        total = _mm512_add_ps(total, exp16(_mm512_sub_ps(x, largest)));
    }
    mass[0] = _mm512_cvtss_f32(largest);
    mass[1] = _mm512_reduce_add_ps(total);
    return found;
}
