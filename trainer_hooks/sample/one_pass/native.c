/* Sums over runs of Adam's state, on the CPU. Compiled where it runs, for the processor that it runs on (native.py).

   A tile is a run of at most 65,536 elements of one piece. Threads take tiles from a common counter, so a core
   that another program keeps busy takes fewer of them, and nobody waits at a barrier. Each tile has its own place for
   what it gives, so the answer does not depend on who took it.

   max of v: as integers, the bits of floats that are not negative are ordered as the floats are, so an integer maximum
   needs no care for nan. A nan or a negative v makes the sum of roots nan, and whoever adds up the tiles has the maximum
   follow it.

   Sums: eight vectors are added in float, in a tree of three levels (a relative error below 2e-7), then in double. */

#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { FLOAT32 = 0, BFLOAT16 = 1 };
enum { LANES = 16, BLOCK = 8 * LANES, ROWS = 5, MAX_THREADS = 256 };

typedef struct { /* native.py has the same */
    const void *v, *m, *p; /* m and p may be null */
    int64_t n;
    int32_t v_type, m_type, p_type, group;
    int64_t piece;
} tile;

typedef struct {
    float momentum_scale, root_scale, eps, decay;
} constants;

typedef struct {
    const tile *tiles;
    const constants *groups; /* null: roots alone */
    double *parts;           /* (tiles, ROWS) */
    int64_t n_tiles;
    int64_t next;
    const int32_t *stop; /* null, or not 0 once the pass is to end */
} work;

typedef float floats __attribute__((vector_size(64)));
typedef int32_t ints __attribute__((vector_size(64)));
typedef float half_floats __attribute__((vector_size(32)));
typedef double doubles __attribute__((vector_size(64)));

typedef struct {
    doubles low, high;
} sums;

#define INLINE static inline __attribute__((always_inline))

/* n elements as floats: where they lie, or widened into room; where n is less than BLOCK, with zeros behind them. */
INLINE const float *read_block(const void *from, int64_t at, int n, int32_t type, float *room) {
    if (type == FLOAT32 && n == BLOCK) return (const float *)from + at;
    memset(room, 0, BLOCK * sizeof *room);
    if (type == FLOAT32) {
        memcpy(room, (const float *)from + at, (size_t)n * sizeof *room);
        return room;
    }
    const uint16_t *half = (const uint16_t *)from + at;
    for (int i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)half[i] << 16;
        memcpy(room + i, &bits, sizeof bits);
    }
    return room;
}

/* The root of each lane.

   With AVX-512: the processor's estimate to 14 bits and one step of Newton's, which takes half the time of its square
   root. Right for 0 and for denormals: the step looks at r * y, which is near 1, and not at r * r, whose last digits a
   denormal can't hold. inf gives nan, which is seen in the sum, and then asked again with exact != 0. */
INLINE floats root_of(floats x, int exact) {
    floats y;
#if defined(__AVX512F__)
    if (exact) {
        __asm__("vsqrtps %1, %0" : "=v"(y) : "v"(x));
        return y;
    }
    uint16_t not_zero;
    const floats zero = {0};
    __asm__("vcmpps $4, %2, %1, %0" : "=Yk"(not_zero) : "v"(x), "v"(zero));
    __asm__("vrsqrt14ps %1, %0%{%2%}%{z%}" : "=v"(y) : "v"(x), "Yk"(not_zero));
    floats r = x * y;
    return r + r * 0.5f * (1.0f - r * y);
#else
    (void)exact;
    for (int l = 0; l < LANES; l++) y[l] = __builtin_sqrtf(x[l]);
    return y;
#endif
}

INLINE floats lanes_at(const float *from) {
    floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void add(sums *to, floats x) {
    half_floats low, high;
    memcpy(&low, &x, sizeof low);
    memcpy(&high, (const char *)&x + sizeof low, sizeof high);
    to->low += __builtin_convertvector(low, doubles);
    to->high += __builtin_convertvector(high, doubles);
}

/* In double: the square of what a float can hold neither overflows nor vanishes there. */
INLINE void add_square(sums *to, floats x) {
    half_floats low, high;
    memcpy(&low, &x, sizeof low);
    memcpy(&high, (const char *)&x + sizeof low, sizeof high);
    doubles a = __builtin_convertvector(low, doubles), b = __builtin_convertvector(high, doubles);
    to->low += a * a;
    to->high += b * b;
}

INLINE double all_of(const sums *of) {
    doubles both = of->low + of->high;
    double sum = 0;
    for (int l = 0; l < LANES / 2; l++) sum += both[l];
    return sum;
}

/* One tile: the sum of roots and the maximum; with groups the sums of squares of m, update and parameter too. */
INLINE void do_tile(const tile *t, const constants *groups, double *out, int exact, int32_t v_type) {
    float v_room[BLOCK], m_room[BLOCK], p_room[BLOCK];
    sums roots = {{0}, {0}}, mm = roots, uu = roots, pp = roots;
    ints tops = {0};
    constants c = {0};
    if (groups) c = groups[t->group];
    for (int64_t at = 0; at < t->n; at += BLOCK) {
        const int n = t->n - at < BLOCK ? (int)(t->n - at) : BLOCK;
        const float *v = read_block(t->v, at, n, v_type, v_room), *m = 0, *p = 0;
        if (groups && t->m) m = read_block(t->m, at, n, t->m_type, m_room);
        if (groups && t->p) p = read_block(t->p, at, n, t->p_type, p_room);
        float beyond[BLOCK]; /* 1 behind the last element, where without an eps 0 would be divided by 0 */
        for (int i = 0; n < BLOCK && i < BLOCK; i++) beyond[i] = i < n ? 0 : 1;
        floats root[BLOCK / LANES];
        for (int i = 0; i < BLOCK / LANES; i++) {
            floats x = lanes_at(v + i * LANES);
            ints bits = (ints)x, larger = bits > tops;
            tops = (bits & larger) | (tops & ~larger);
            root[i] = root_of(x, exact);
        }
        add(&roots, ((root[0] + root[1]) + (root[2] + root[3])) + ((root[4] + root[5]) + (root[6] + root[7])));
        if (!groups) continue;
        for (int i = 0; i < BLOCK / LANES; i++) {
            floats update = {0};
            if (m) {
                floats x = lanes_at(m + i * LANES);
                add_square(&mm, x);
                floats divisor = root[i] * c.root_scale + c.eps;
                if (n < BLOCK) divisor += lanes_at(beyond + i * LANES);
                update = x * c.momentum_scale / divisor;
            }
            if (p) {
                floats x = lanes_at(p + i * LANES);
                add_square(&pp, x);
                update += c.decay * x;
            }
            add_square(&uu, update);
        }
    }
    int32_t top = 0;
    for (int l = 0; l < LANES; l++) top = tops[l] > top ? tops[l] : top;
    float largest;
    memcpy(&largest, &top, sizeof largest);
    const double nan = __builtin_nan("");
    out[0] = all_of(&roots);
    out[1] = largest;
    out[2] = t->m ? all_of(&mm) : nan;
    out[3] = t->m && (t->p || c.decay == 0) ? all_of(&uu) : nan;
    out[4] = t->p ? all_of(&pp) : nan;
}

static void do_one(const work *w, int64_t number) {
    const tile *t = w->tiles + number;
    double *out = w->parts + number * ROWS;
    if (w->groups)
        do_tile(t, w->groups, out, 0, t->v_type);
    else if (t->v_type == FLOAT32) /* a constant, so that the loop has no branch */
        do_tile(t, 0, out, 0, FLOAT32);
    else
        do_tile(t, 0, out, 0, BFLOAT16);
    if (out[0] != out[0]) do_tile(t, w->groups, out, 1, t->v_type); /* an inf, or really a nan */
}

static void *run(void *of) {
    work *w = of;
    while (!w->stop || !__atomic_load_n(w->stop, __ATOMIC_RELAXED)) {
        int64_t number = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
        if (number >= w->n_tiles) return 0;
        do_one(w, number);
    }
    return 0;
}

/* Fills out, (2, pieces), or with groups (ROWS, pieces), which holds zeros. parts is room for (tiles, ROWS). A thread
   that can't be had is done without: this one does what is left over. Returns 1 where it was stopped before the end. */
int32_t one_pass(const tile *tiles, int64_t n_tiles, const constants *groups, double *parts, int32_t threads, double *out,
                 int64_t pieces, const int32_t *stop) {
    work w = {tiles, groups, parts, n_tiles, 0, stop};
    pthread_t others[MAX_THREADS];
    int started = 0;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    while (started < threads - 1 && pthread_create(others + started, 0, run, &w) == 0) started++;
    run(&w);
    while (started > 0) pthread_join(others[--started], 0);
    if (w.next < n_tiles) return 1; /* a tile that was taken was done */
    for (int64_t number = 0; number < n_tiles; number++, parts += ROWS) {
        double *of = out + tiles[number].piece, *largest = of + pieces;
        of[0] += parts[0];
        if (parts[1] > *largest) *largest = parts[1];
        for (int row = 2; groups && row < ROWS; row++) of[row * pieces] += parts[row];
    }
    for (int64_t piece = 0; piece < pieces; piece++)
        if (out[piece] != out[piece]) out[pieces + piece] = out[piece];
    return 0;
}
