/* What torch computes in many small operations. `kernels.py` compiles this where there is a compiler and says what each
   function is; a thread calls them for rows of its own. BLOCK, of the vocabulary, is defined there. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 8 /* of queries at once: their sums, two vectors wide, stay in registers */
#define COLUMNS 32

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
