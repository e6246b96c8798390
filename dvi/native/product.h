/* x W^T + b for few rows: each weight is read from memory once, whatever the number of rows.

   Letters: n rows of x, I inputs, O outputs; W [O, I] row by row, as torch keeps it. An output is
   summed in one order for every n, row and thread, so its bits depend on x and W alone. */
#pragma once
#include "vectors.h"

typedef struct {
    const void *weight;   /* [O, I] floats, or bytes where scales are given */
    const float *bias;    /* [O] or NULL */
    const float *scales;  /* [O] or NULL */
    const int32_t *sums;  /* [O], of the bytes of a row, or NULL */
    int64_t outputs, inputs;
} Matrix;

enum { BLOCK = 4, MOST_ROWS = 6 }; /* 4 x 6 sums and what feeds them fit the 32 registers */
enum { FEW_ROWS = 24, GROUP = 64, PANEL = 1 << 17 }; /* of float_product; PANEL in floats */

/* How many of `left` rows the next tile takes. */
INLINE int tile_rows(int left) {
    return left <= MOST_ROWS ? left : left >= 2 * MOST_ROWS ? MOST_ROWS : (left + 1) / 2;
}

/* Fetch line i of some of the next block's rows: its tiles share the work, so that the memory is
   busy all the time. Reading past the matrix is allowed to a fetch. */
INLINE void fetch(const char *next, int64_t row_bytes, int64_t at, int num_rows) {
    if (num_rows > 0) _mm_prefetch(next + at, _MM_HINT_T0);
    if (num_rows > 1) _mm_prefetch(next + row_bytes + at, _MM_HINT_T0);
    if (num_rows > 2) {
        _mm_prefetch(next + 2 * row_bytes + at, _MM_HINT_T0);
        _mm_prefetch(next + 3 * row_bytes + at, _MM_HINT_T0);
    }
}

INLINE void float_tile(int n, const float *x, const float *w, int64_t inputs, const float *next,
                       int fetched, __m128 *found) {
    __m512 sums[MOST_ROWS][BLOCK];
#pragma GCC unroll 6
    for (int row = 0; row < n; row++)
#pragma GCC unroll 4
        for (int o = 0; o < BLOCK; o++) sums[row][o] = _mm512_setzero_ps();
    for (int64_t i = 0; i < inputs; i += LANES) {
        __m512 weights[BLOCK];
#pragma GCC unroll 4
        for (int o = 0; o < BLOCK; o++) weights[o] = _mm512_loadu_ps(w + o * inputs + i);
        fetch((const char *)next, 4 * inputs, 4 * i, fetched);
#pragma GCC unroll 6
        for (int row = 0; row < n; row++) {
            __m512 values = _mm512_loadu_ps(x + row * inputs + i);
#pragma GCC unroll 4
            for (int o = 0; o < BLOCK; o++)
                sums[row][o] = _mm512_fmadd_ps(values, weights[o], sums[row][o]);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < n; row++)
        found[row] = sums4(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
}

/* Digits are bytes plus 128, [n, I]; the sums are exact. */
INLINE void byte_tile(int n, const uint8_t *x, const int8_t *w, int64_t inputs, const int8_t *next,
                      int fetched, __m128i *found) {
    __m512i sums[MOST_ROWS][BLOCK];
#pragma GCC unroll 6
    for (int row = 0; row < n; row++)
#pragma GCC unroll 4
        for (int o = 0; o < BLOCK; o++) sums[row][o] = _mm512_setzero_si512();
    for (int64_t i = 0; i < inputs; i += 4 * LANES) {
        __m512i weights[BLOCK];
#pragma GCC unroll 4
        for (int o = 0; o < BLOCK; o++) weights[o] = _mm512_loadu_si512(w + o * inputs + i);
        fetch((const char *)next, inputs, i, fetched);
#pragma GCC unroll 6
        for (int row = 0; row < n; row++) {
            __m512i values = _mm512_loadu_si512(x + row * inputs + i);
#pragma GCC unroll 4
            for (int o = 0; o < BLOCK; o++)
                sums[row][o] = _mm512_dpbusd_epi32(sums[row][o], values, weights[o]);
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < n; row++)
        found[row] = sums4_int(sums[row][0], sums[row][1], sums[row][2], sums[row][3]);
}

#define WITH_CONSTANT_ROWS(n, tile) \
    switch (n) {                    \
        case 1: tile(1); break;     \
        case 2: tile(2); break;     \
        case 3: tile(3); break;     \
        case 4: tile(4); break;     \
        case 5: tile(5); break;     \
        default: tile(6); break;    \
    }

INLINE __m128 with_bias(__m128 found, const float *bias, int64_t o) {
    return bias ? _mm_add_ps(found, _mm_loadu_ps(bias + o)) : found;
}

INLINE void store4(float *out, const float *added, __m128 found) {
    _mm_storeu_ps(out, added ? _mm_add_ps(found, _mm_loadu_ps(added)) : found);
}

/* One product, and where its rows lie. */
typedef struct {
    const Matrix *m;
    const float *x;        /* [n, I] floats, or */
    const uint8_t *digits; /* [2n, I], high ones first, */
    const float *scales;   /* [n] of the rows */
    int n;
    const float *added; /* [n, O] or NULL, added to the outputs */
    float *out;         /* [n, O] */
} Product;

/* A block of outputs from o on of `taken` rows; `next` are the weights to fetch meanwhile. */
INLINE void float_block(const Product *p, int row, int taken, int64_t o, int64_t next, int fetched) {
    const int64_t inputs = p->m->inputs, outputs = p->m->outputs;
    const float *x = p->x + row * inputs, *weight = p->m->weight;
    __m128 found[MOST_ROWS];
#define TILE(n) float_tile(n, x, weight + o * inputs, inputs, weight + next * inputs, fetched, found)
    WITH_CONSTANT_ROWS(taken, TILE)
#undef TILE
    for (int r = 0; r < taken; r++) {
        int64_t place = (row + r) * outputs + o;
        store4(p->out + place, p->added ? p->added + place : 0, with_bias(found[r], p->m->bias, o));
    }
}

INLINE void byte_block(const Product *p, int row, int taken, int64_t o, int64_t next, int fetched) {
    const int64_t inputs = p->m->inputs, outputs = p->m->outputs;
    const uint8_t *ups = p->digits + row * inputs, *downs = ups + p->n * inputs;
    const int8_t *w = (const int8_t *)p->m->weight + o * inputs;
    const int8_t *ahead = (const int8_t *)p->m->weight + next * inputs;
    const __m128i offset = _mm_slli_epi32(_mm_loadu_si128((const __m128i *)(p->m->sums + o)), 7);
    const __m128 steps = _mm_loadu_ps(p->m->scales + o);
    __m128i high[MOST_ROWS], low[MOST_ROWS];
#define TILE(n)                                         \
    byte_tile(n, ups, w, inputs, ahead, fetched, high), \
        byte_tile(n, downs, w, inputs, ahead, 0, low)
    WITH_CONSTANT_ROWS(taken, TILE)
#undef TILE
    for (int r = 0; r < taken; r++) {
        int64_t place = (row + r) * outputs + o;
        __m128 up = _mm_cvtepi32_ps(_mm_sub_epi32(high[r], offset));
        __m128 down = _mm_cvtepi32_ps(_mm_sub_epi32(low[r], offset));
        __m128 sum = _mm_fmadd_ps(up, _mm_set1_ps(128.0f), down);
        sum = _mm_mul_ps(_mm_mul_ps(sum, _mm_set1_ps(p->scales[row + r])), steps);
        store4(p->out + place, p->added ? p->added + place : 0, with_bias(sum, p->m->bias, o));
    }
}

/* Outputs [o, last) of rows [row, end), the last block drawn back to end there. */
INLINE void some_rows(const Product *p, int row, int end, int64_t o, int64_t last, int64_t ahead,
                      int tile) {
    const int fetched = p->n <= MOST_ROWS ? 4 : p->n <= 3 * MOST_ROWS ? 2 : 1;
    if (o > last - BLOCK) o = last - BLOCK;
    for (int taken; row < end; row += taken, tile++) {
        const int lines = tile * fetched < BLOCK ? fetched : 0;
        taken = tile_rows(end - row);
        if (p->m->scales)
            byte_block(p, row, taken, o, o + ahead + tile * fetched, lines);
        else
            float_block(p, row, taken, o, o + ahead + tile * fetched, lines);
    }
}

/* Outputs [first, last) of all rows.

   Few rows: all of them by the time that a weight is there. Many: as many as the second cache
   holds beside a group of outputs. */
static void run_share(const Product *p, int64_t first, int64_t last) {
    if (p->n <= FEW_ROWS) {
        for (int64_t o = first; o < last; o += BLOCK) some_rows(p, 0, p->n, o, last, BLOCK, 0);
        return;
    }
    const int fit = (int)(PANEL / p->m->inputs) / MOST_ROWS * MOST_ROWS;
    const int panel = fit < MOST_ROWS ? MOST_ROWS : fit;
    for (int row = 0; row < p->n; row += panel) {
        const int end = row + panel < p->n ? row + panel : p->n;
        for (int64_t group = first; group < last; group += GROUP) {
            const int64_t stop = group + GROUP < last ? group + GROUP : last;
            for (int at = row; at < end; at += MOST_ROWS)
                for (int64_t o = group; o < stop; o += BLOCK)
                    some_rows(p, at, at + MOST_ROWS < end ? at + MOST_ROWS : end, o, stop, GROUP,
                              (at - row) / MOST_ROWS);
        }
    }
}

/* A row of x as whole numbers 128 * high + low of its scale, as bytes plus 128. */
static void to_digits(const float *x, int64_t inputs, uint8_t *high, uint8_t *low, float *scale) {
    const __m512i offset = _mm512_set1_epi32(128);
    __m512 most = _mm512_setzero_ps();
    __mmask16 no_numbers = 0;
    for (int64_t i = 0; i < inputs; i += LANES) {
        __m512 value = _mm512_loadu_ps(x + i);
        most = _mm512_max_ps(most, _mm512_abs_ps(value));
        no_numbers |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    }
    *scale = _mm512_reduce_max_ps(most) * (float)(1.0 / (127 * 128));
    if (no_numbers) *scale = __builtin_nanf("");
    for (int64_t i = 0; i < inputs; i += LANES) {
        __m512 whole = _mm512_div_ps(_mm512_loadu_ps(x + i), _mm512_set1_ps(*scale));
        whole = _mm512_roundscale_ps(whole, 0);
        __m512 upper = _mm512_roundscale_ps(_mm512_mul_ps(whole, _mm512_set1_ps(1.0f / 128)), 0);
        whole = _mm512_fnmadd_ps(upper, _mm512_set1_ps(128.0f), whole);
        __m512i up = _mm512_add_epi32(_mm512_cvtps_epi32(upper), offset);
        __m512i down = _mm512_add_epi32(_mm512_cvtps_epi32(whole), offset);
        _mm_storeu_si128((__m128i *)(high + i), _mm512_cvtepi32_epi8(up));
        _mm_storeu_si128((__m128i *)(low + i), _mm512_cvtepi32_epi8(down));
    }
}
