/* One decoder layer over the few positions of a decode step, float32 between its matrices.

   The same arithmetic as dvi/modeling/layer.py, which says what each part means. Every thread
   does its share of each part; barriers part them. Letters: N positions, H hidden width, D head
   width, I intermediate width, S keys that the longest position sees. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "attention.h"
#include "product.h"

typedef struct {
    Matrix qkv, o, gate_up, down;
    const float *input_norm, *post_norm; /* [H] */
    const float *qk_norm;                /* [heads + kv_heads, D] or NULL */
    int64_t hidden, heads, kv_heads, width, intermediate;
    double eps;
} Layer;

typedef struct {
    const int64_t *rows, *positions; /* [N] */
    const int64_t *pieces;           /* [pieces + 1] first positions of neighbours in one row */
    const float *cos, *sin;          /* [N, D] */
    float *cache;                    /* [layers, 2, rows, kv_heads, capacity, D] */
    int64_t num_positions, num_pieces, num_keys, cache_rows, capacity;
} Pass;

typedef struct { int64_t first, last; } Share;

int64_t dvi_abi(void) { return 2; }

static Share my_share(int64_t count, int64_t step) {
    int64_t blocks = (count + step - 1) / step;
    int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
    int64_t last = blocks * (thread + 1) / threads * step;
    return (Share){blocks * thread / threads * step, last < count ? last : count};
}

static void run_product(const Matrix *m, const float *x, int64_t n, const float *added, float *out,
                        uint8_t *digits, float *scales) {
    const Product product = {m, x, digits, scales, (int)n, added, out};
    if (m->scales) {
        Share rows = my_share(n, 1);
        for (int64_t row = rows.first; row < rows.last; row++)
            to_digits(x + row * m->inputs, m->inputs, digits + row * m->inputs,
                      digits + (n + row) * m->inputs, scales + row);
#pragma omp barrier
    }
    Share mine = my_share(m->outputs, BLOCK);
    run_share(&product, mine.first, mine.last);
#pragma omp barrier
}

static void norm_row(const float *x, const float *weight, int64_t size, float eps, float *out) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        __m512 value = _mm512_loadu_ps(x + i);
        squares = _mm512_fmadd_ps(value, value, squares);
    }
    __m512 factor = _mm512_set1_ps(1.0f / sqrtf(_mm512_reduce_add_ps(squares) / size + eps));
    for (int64_t i = 0; i < size; i += LANES) {
        __m512 value = _mm512_mul_ps(_mm512_loadu_ps(x + i), factor);
        _mm512_storeu_ps(out + i, _mm512_mul_ps(value, _mm512_loadu_ps(weight + i)));
    }
}

static void norm_rows(const float *x, const float *weight, int64_t n, int64_t size, float eps,
                      float *out) {
    Share mine = my_share(n, 1);
    for (int64_t row = mine.first; row < mine.last; row++)
        norm_row(x + row * size, weight, size, eps, out + row * size);
#pragma omp barrier
}

/* x * cos + roll(x, D / 2) * sin, in place. */
static void rotate(float *x, const float *cos, const float *sin, int64_t width) {
    int64_t half = width / 2;
    for (int64_t i = 0; i < half; i++) {
        float low = x[i], high = x[i + half];
        x[i] = low * cos[i] + high * sin[i];
        x[i + half] = high * cos[i + half] + low * sin[i + half];
    }
}

/* Norms and rotation of q and k in place; k and v go to the cache. */
static void place_positions(const Layer *layer, const Pass *pass, int64_t index, float *qkv) {
    int64_t width = layer->width, rotated = layer->heads + layer->kv_heads;
    int64_t all = rotated + layer->kv_heads, line = pass->capacity * width;
    Share mine = my_share(pass->num_positions, 1);
    for (int64_t n = mine.first; n < mine.last; n++) {
        float *heads = qkv + n * all * width;
        const float *cos = pass->cos + n * width, *sin = pass->sin + n * width;
        for (int64_t head = 0; head < rotated; head++) {
            float *x = heads + head * width;
            if (layer->qk_norm)
                norm_row(x, layer->qk_norm + head * width, width, (float)layer->eps, x);
            rotate(x, cos, sin, width);
        }
        for (int64_t plane = 0; plane < 2; plane++) {
            int64_t row = (2 * index + plane) * pass->cache_rows + pass->rows[n];
            float *to = pass->cache + row * layer->kv_heads * line + pass->positions[n] * width;
            const float *from = heads + (layer->heads + plane * layer->kv_heads) * width;
            for (int64_t head = 0; head < layer->kv_heads; head++)
                memcpy(to + head * line, from + head * width, width * sizeof(float));
        }
    }
#pragma omp barrier
}

static void attend_all(const Layer *layer, const Pass *pass, int64_t index, const float *qkv,
                       float *room, float *mixed) {
    int64_t width = layer->width, group = layer->heads / layer->kv_heads;
    int64_t all = (layer->heads + 2 * layer->kv_heads) * width, line = pass->capacity * width;
    int64_t plane = pass->cache_rows * layer->kv_heads * line;
    int64_t jobs = pass->num_pieces * layer->kv_heads;
    for (int64_t job = omp_get_thread_num(); job < jobs; job += omp_get_num_threads()) {
        int64_t at = job / layer->kv_heads, head = job % layer->kv_heads, n = pass->pieces[at];
        Piece piece = {pass->pieces[at + 1] - n, pass->positions[n] + 1, group, width, all,
                       layer->heads * width};
        const float *keys = pass->cache + 2 * index * plane +
                            (pass->rows[n] * layer->kv_heads + head) * line;
        attend(&piece, qkv + n * all + head * group * width, keys, keys + plane, room,
               mixed + (n * layer->heads + head * group) * width);
    }
#pragma omp barrier
}

static void gate_rows(const float *gate_up, int64_t n, int64_t size, float *out) {
    const __m512 one = _mm512_set1_ps(1.0f);
    Share mine = my_share(n * size, LANES);
    for (int64_t at = mine.first; at < mine.last; at += LANES) {
        const float *gate = gate_up + at / size * 2 * size + at % size;
        __m512 value = _mm512_loadu_ps(gate);
        __m512 below = _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), value)));
        value = _mm512_mul_ps(_mm512_div_ps(value, below), _mm512_loadu_ps(gate + size));
        _mm512_storeu_ps(out + at, value);
    }
#pragma omp barrier
}

/* Floats that a thread needs to attend. */
static int64_t room_of(const Layer *layer, const Pass *pass) {
    int64_t group = layer->heads / layer->kv_heads, most = 1;
    for (int64_t i = 0; i < pass->num_pieces; i++)
        if (pass->pieces[i + 1] - pass->pieces[i] > most) most = pass->pieces[i + 1] - pass->pieces[i];
    return most * group * (pass->num_keys + 2 * LANES);
}

/* Floats of scratch that dvi_layer needs. */
int64_t dvi_scratch(const Layer *layer, const Pass *pass, int64_t threads) {
    int64_t most = layer->hidden, n = pass->num_positions;
    int64_t heads = layer->heads * layer->width;
    if (heads > most) most = heads;
    if (layer->intermediate > most) most = layer->intermediate;
    int64_t wide = 2 * layer->intermediate, qkv = heads + 2 * layer->kv_heads * layer->width;
    return n * (2 * most + (wide > qkv ? wide : qkv) + most / 2 + 1) +
           threads * room_of(layer, pass);
}

/* [N, H] -> out [N, H]; keys and values go to layer `index` of the cache. Without `out` that is
   all that is done. */
void dvi_layer(const Layer *layer, const Pass *pass, int64_t index, const float *hidden, float *out,
               float *scratch, int64_t threads) {
    int64_t n = pass->num_positions, most = layer->hidden, heads = layer->heads * layer->width;
    if (heads > most) most = heads;
    if (layer->intermediate > most) most = layer->intermediate;
    float *small = scratch, *other = small + n * most, *scales = other + n * most;
    uint8_t *digits = (uint8_t *)(scales + n);
    float *rooms = scales + n + n * (most / 2), *wide = rooms + threads * room_of(layer, pass);
    float eps = (float)layer->eps;
#pragma omp parallel num_threads(threads)
    {
        float *room = rooms + omp_get_thread_num() * room_of(layer, pass);
        norm_rows(hidden, layer->input_norm, n, layer->hidden, eps, small);
        run_product(&layer->qkv, small, n, 0, wide, digits, scales);
        place_positions(layer, pass, index, wide);
        if (out) {
            attend_all(layer, pass, index, wide, room, small);
            run_product(&layer->o, small, n, hidden, other, digits, scales);
            norm_rows(other, layer->post_norm, n, layer->hidden, eps, small);
            run_product(&layer->gate_up, small, n, 0, wide, digits, scales);
            gate_rows(wide, n, layer->intermediate, small);
            run_product(&layer->down, small, n, other, out, digits, scales);
        }
    }
}

/* x [n, I] -> out [n, O]; digits: room for 2 n I bytes and n floats, unused by floats. */
void dvi_product(const Matrix *m, const float *x, int64_t n, float *out, float *room,
                 int64_t threads) {
#pragma omp parallel num_threads(threads)
    run_product(m, x, n, 0, out, (uint8_t *)(room + n), room);
}
