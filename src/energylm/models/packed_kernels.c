/* What a step of `packed` computes between its products. `packed_kernels.py` compiles this where there is a compiler and
   says what each function is; a thread calls them for rows of its own.

   B contexts, K heads of keys, N copies of a context, G heads of queries to a head of keys, D numbers a head, P tokens
   of the longest context, T places for new tokens, of which `filled` are taken, the newest included. */

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
    int j = 0;
    for (; j + COLUMNS <= columns; j += COLUMNS) {
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
    }
    for (int r = 0; r < rows && j < columns; r++) {
        float sum[COLUMNS] = {0};
        for (int i = 0; i < inner; i++)
            for (int rest = 0; rest < columns - j; rest++)
                sum[rest] += a[r * a_row + i] * b[i * b_row + j + rest];
        for (int rest = 0; rest < columns - j; rest++)
            c[r * c_row + j + rest] = sum[rest] + (adds ? c[r * c_row + j + rest] : 0);
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

/* projected (B, N, (K G + 2 K) D), rotation (B, D) or null, prefix_keys (B, K, D, P), prefix_values (B, K, P, D),
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
                const float *asked = query + (long)start * width;
                products(some, width, prefix, asked, width, shared_keys, prefix_room, score, scores);
                for (int r = 0; r < some; r++) {
                    const float *own = own_keys + (long)((start + r) / group) * room * width;
                    for (int t = 0; t < filled; t++) {
                        float similarity = 0;
                        for (int d = 0; d < width; d++)
                            similarity += asked[(long)r * width + d] * own[(long)t * width + d];
                        score[r * scores + prefix + t] = similarity;
                    }
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
