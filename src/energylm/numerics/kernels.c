/* What torch computes in many small operations. `kernels.py` compiles this where there is a compiler and says what each
   function is; a thread calls them for rows of its own. BLOCK, of the vocabulary, and COLUMNS, two vectors, come from there. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 8 /* of queries at once: their sums, two vectors wide, stay in registers */
#ifdef __AVX512F__
#define TILE 14 /* rows of a product with weights: 28 sums, a line of weights and a number of x in 32 registers */
#else
#define TILE 3
#endif

typedef float vector __attribute__((vector_size(64), aligned(4), may_alias));

/* c = a b, or c + a b where `adds`; `rows` must be a constant of the caller, at most ROWS */
static inline __attribute__((always_inline)) void product(
    int rows, int inner, int columns, const float *a, long a_row, const float *b, long b_row, float *c, long c_row, int adds)
{
    int done = 0;
    while (done < columns && (done + COLUMNS <= columns || (columns >= COLUMNS && !adds))) {
        int j = done + COLUMNS <= columns ? done : columns - COLUMNS; /* the last may overlap the one before */
        vector sum[ROWS][2];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++)
                sum[r][v] = adds ? ((const vector *)(c + r * c_row + j))[v] : (vector){0};
        for (int i = 0; i < inner; i++) {
            const vector *line = (const vector *)(b + i * b_row + j);
            for (int r = 0; r < rows; r++) {
                sum[r][0] += a[r * a_row + i] * line[0];
                sum[r][1] += a[r * a_row + i] * line[1];
            }
        }
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++)
                ((vector *)(c + r * c_row + j))[v] = sum[r][v];
        done = j + COLUMNS;
    }
    for (int r = 0; r < rows; r++)
        for (int j = done; j < columns; j++) {
            float sum = adds ? c[r * c_row + j] : 0;
            for (int i = 0; i < inner; i++)
                sum += a[r * a_row + i] * b[i * b_row + j];
            c[r * c_row + j] = sum;
        }
}

static void products(
    int rows, int inner, int columns, const float *a, long a_row, const float *b, long b_row, float *c, long c_row)
{
    if (rows == ROWS)
        product(ROWS, inner, columns, a, a_row, b, b_row, c, c_row, 0);
    else
        for (int r = 0; r < rows; r++)
            product(1, inner, columns, a + r * a_row, a_row, b, b_row, c + r * c_row, c_row, 0);
}

/* A tile of x W: `rows`, a constant of the caller, by the COLUMNS of a panel of W. While it computes, one line of 16 numbers
   of what comes next is called from memory at every step: products of few rows would wait for their weights otherwise. */
static inline __attribute__((always_inline)) void tile(
    int rows, int inner, const float *x, const float *panel, const float *next, float *result)
{
    vector sum[TILE][2];
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = (vector){0};
    for (int i = 0; i < inner; i++) {
        vector left = ((const vector *)(panel + (long)i * COLUMNS))[0];
        vector right = ((const vector *)(panel + (long)i * COLUMNS))[1];
        __builtin_prefetch(next + (long)i * 16, 0, 2);
        for (int r = 0; r < rows; r++) {
            sum[r][0] += x[(long)r * inner + i] * left;
            sum[r][1] += x[(long)r * inner + i] * right;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++)
            ((vector *)(result + r * COLUMNS))[v] = sum[r][v];
}

static void tiles(int rows, int inner, const float *x, const float *panel, const float *next, float *result)
{
#define TILE_OF(n) case n: tile(n, inner, x, panel, next, result); break;
    switch (rows) {
        TILE_OF(1) TILE_OF(2) TILE_OF(3)
#if TILE == 14
        TILE_OF(4) TILE_OF(5) TILE_OF(6) TILE_OF(7) TILE_OF(8) TILE_OF(9) TILE_OF(10) TILE_OF(11) TILE_OF(12)
        TILE_OF(13) TILE_OF(14)
#endif
    }
}

enum after { NOTHING, SWISH, GELU_TANH, GELU_ERF, ADD, TIMES }; /* `kernels.AFTER` has the same order */

/* x / (1 + exp(-u)); with fast mathematics a denominator of infinity would give no number */
static inline __attribute__((always_inline)) float gated(float x, float u)
{
    return x / (1 + expf(u < -80 ? 80 : -u));
}

static void finish(int count, enum after after, const float *bias, const float *other, float *result)
{
    if (bias)
        for (int j = 0; j < count; j++)
            result[j] += bias[j];
    switch (after) {
    case NOTHING: break;
    case SWISH:
        for (int j = 0; j < count; j++)
            result[j] = gated(result[j], result[j]);
        break;
    case GELU_TANH: /* x (1 + tanh u) / 2 = x / (1 + exp(-2 u)) */
        for (int j = 0; j < count; j++) {
            float x = result[j];
            result[j] = gated(x, 1.5957691216f * (x + 0.044715f * x * x * x));
        }
        break;
    case GELU_ERF:
        for (int j = 0; j < count; j++)
            result[j] *= 0.5f + 0.5f * erff(0.70710678118f * result[j]);
        break;
    case ADD:
        for (int j = 0; j < count; j++)
            result[j] += other[j];
        break;
    case TIMES:
        for (int j = 0; j < count; j++)
            result[j] *= other[j];
    }
}

/* x (rows, inner), panels (columns / COLUMNS rounded up, inner, COLUMNS), bias (columns) or null, other and result
   (rows, columns): a few tiles of rows meet each panel while it is in the cache */
void linear(
    int rows, int inner, int columns, enum after after, const float *x, const float *panels, const float *bias,
    const float *other, float *result)
{
    int blocks = (rows + TILE - 1) / TILE;
    float made[TILE * COLUMNS];
    for (int start = 0; start < columns; start += COLUMNS) {
        const float *panel = panels + (long)start * inner, *next = panel + (long)inner * COLUMNS;
        int some = columns - start < COLUMNS ? columns - start : COLUMNS;
        for (int t = 0; t < blocks; t++) {
            long first = (long)rows * t / blocks, last = (long)rows * (t + 1) / blocks;
            tiles(last - first, inner, x + first * inner, panel, t < 2 ? next + (long)t * inner * 16 : next, made);
            for (long r = first; r < last; r++) {
                float *line = made + (r - first) * COLUMNS;
                finish(some, after, bias ? bias + start : 0, other ? other + r * columns + start : 0, line);
                memcpy(result + r * columns + start, line, sizeof(float) * some);
            }
        }
    }
}

/* similarity[t] = query . keys[t] for one row's own tokens */
static inline __attribute__((always_inline)) void similarities(
    int width, int filled, const float *query, const float *keys, float *similarity)
{
    for (int t = 0; t < filled; t++) {
        float sum = 0;
        for (int d = 0; d < width; d++)
            sum += query[d] * keys[(long)t * width + d];
        similarity[t] = sum;
    }
}

/* neighbours of x as complex numbers, times those of `rotation`, which may be absent */
static void turn(int width, const float *x, const float *rotation, float *turned)
{
    if (!rotation) {
        memcpy(turned, x, sizeof(float) * width);
        return;
    }
    for (int d = 0; d < width; d += 2) {
        turned[d] = x[d] * rotation[d] - x[d + 1] * rotation[d + 1];
        turned[d + 1] = x[d] * rotation[d + 1] + x[d + 1] * rotation[d];
    }
}

/* scores become exp(score - largest); their sum is returned */
static float exponentials(int count, float *score)
{
    float largest = score[0], sum = 0;
    for (int j = 1; j < count; j++)
        largest = score[j] > largest ? score[j] : largest;
    for (int j = 0; j < count; j++) {
        score[j] = expf(score[j] - largest);
        sum += score[j];
    }
    return sum;
}

/* B contexts, K heads of keys, N copies of a context, G heads of queries to a head of keys, D numbers a head, P tokens of
   the longest context, T places for new tokens, of which `filled` are taken, the newest included;
   projected (B, N, (K G + 2 K) D), rotation (B, D) or null, prefix_keys (B, K, D, P), prefix_values (B, K, P, D),
   keys and values (B, K, N, T, D), attended (B, N, K G D); 1 where memory is short, else 0 */
int attend(
    int contexts, int kv_heads, int copies, int group, int width, int prefix_room, int room, int filled,
    const long long *prefix_lengths, const float *projected, const float *rotation, const float *prefix_keys,
    const float *prefix_values, float *keys, float *values, float *attended)
{
    int heads = kv_heads * group, rows = copies * group;
    long line = (long)(heads + 2 * kv_heads) * width, scores = prefix_room + room;
    float *query = malloc(sizeof(float) * (rows * (long)width + ROWS * (scores + width)));
    if (!query)
        return 1;
    float *score = query + rows * (long)width, *sum = score + ROWS * scores, total[ROWS];

    for (int b = 0; b < contexts; b++)
        for (int k = 0; k < kv_heads; k++) {
            int prefix = (int)prefix_lengths[b];
            long head = (long)b * kv_heads + k;
            const float *rotated = rotation ? rotation + (long)b * width : 0;
            const float *shared_keys = prefix_keys + head * width * prefix_room;
            const float *shared_values = prefix_values + head * prefix_room * width;
            float *own_keys = keys + head * copies * room * width, *own_values = values + head * copies * room * width;

            for (int n = 0; n < copies; n++) {
                const float *given = projected + ((long)b * copies + n) * line;
                long newest = ((long)n * room + filled - 1) * width;
                for (int g = 0; g < group; g++)
                    turn(width, given + (k * group + g) * width, rotated, query + ((long)n * group + g) * width);
                turn(width, given + (heads + k) * width, rotated, own_keys + newest);
                memcpy(own_values + newest, given + (heads + kv_heads + k) * width, sizeof(float) * width);
            }
            for (int start = 0; start < rows; start += ROWS) {
                int some = rows - start < ROWS ? rows - start : ROWS;
                for (int n = (start + ROWS) / group; n <= (start + 2 * ROWS - 1) / group && n < copies; n++)
                    for (long at = 0; at < (long)filled * width; at += 16) { /* the next tile's, while this one computes */
                        __builtin_prefetch(own_keys + (long)n * room * width + at, 0, 2);
                        __builtin_prefetch(own_values + (long)n * room * width + at, 0, 2);
                    }
                const float *asked = query + (long)start * width;
                products(some, width, prefix, asked, width, shared_keys, prefix_room, score, scores);
                for (int r = 0; r < some; r++) {
                    const float *own = own_keys + (long)((start + r) / group) * room * width;
                    if (width == 64) /* the usual one, known when compiled */
                        similarities(64, filled, asked + r * 64, own, score + r * scores + prefix);
                    else
                        similarities(width, filled, asked + (long)r * width, own, score + r * scores + prefix);
                    total[r] = exponentials(prefix + filled, score + r * scores);
                }
                products(some, prefix, width, score, scores, shared_values, width, sum, width);
                for (int r = 0; r < some; r++) {
                    int n = (start + r) / group, g = (start + r) % group;
                    product(1, filled, width, score + r * scores + prefix, scores, own_values + (long)n * room * width,
                            width, sum + r * (long)width, width, 1);
                    float *result = attended + (((long)b * copies + n) * heads + k * group + g) * width;
                    for (int d = 0; d < width; d++)
                        result[d] = sum[r * (long)width + d] / total[r];
                }
            }
        }
    free(query);
    return 0;
}

void normalise(int rows, int width, float epsilon, const float *x, float *normalised)
{
    for (long r = 0; r < rows; r++) {
        float squares = 0;
        for (long d = 0; d < width; d++)
            squares += x[r * width + d] * x[r * width + d];
        float scale = 1 / sqrtf(squares / width + epsilon);
        for (long d = 0; d < width; d++)
            normalised[r * width + d] = scale * x[r * width + d];
    }
}

/* logits (rows, vocabulary), largest (rows), weights (rows, blocks) */
void block_weights(int rows, int vocabulary, const float *logits, const float *largest, double *weights)
{
    int blocks = (vocabulary + BLOCK - 1) / BLOCK;
    for (long r = 0; r < rows; r++)
        for (int m = 0; m < blocks; m++) {
            const float *logit = logits + r * vocabulary + (long)m * BLOCK;
            float sum = 0;
            if (m < vocabulary / BLOCK)
                for (int v = 0; v < BLOCK; v++)
                    sum += expf(logit[v] - largest[r]);
            else
                for (int v = 0; v < vocabulary % BLOCK; v++)
                    sum += expf(logit[v] - largest[r]);
            weights[r * blocks + m] = sum;
        }
}
