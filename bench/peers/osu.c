/*
 * osu: the OSU micro-benchmarks by name and meaning, in one program of our own.
 *
 * cmd/mpivbench is the same program over mpiv. Both keep the contract below to
 * the letter, because cmd/mpivpeers runs them side by side and reads both with
 * one parser.
 *
 *   osu TEST [-m [MIN:]MAX | -s SIZE,SIZE,...] [-i ITERS] [-x WARMUP] [-w WINDOW] [-t THREADS]
 *
 * The test comes first, then the options, each with its value as the next word.
 *
 *   -m [MIN:]MAX  sizes in bytes: MIN, 2 MIN, 4 MIN, ... up to MAX. A MIN of 0
 *                 gives 0, 1, 2, 4, ... Without MIN, and without -m, each test
 *                 has its own limits (table below).
 *   -s LIST       exactly these sizes, in this order; -m is then ignored.
 *   -i ITERS      timed iterations for sizes up to 8192 bytes.
 *   -x WARMUP     iterations before the clock starts, for the same sizes.
 *                 Beyond 8192 bytes both are divided by the test's divisor
 *                 (integer division, at least 1 iteration; warm-up may be 0).
 *   -w WINDOW     messages in flight per iteration (bw, bibw, mbw_mr). 64.
 *   -t THREADS    threads that answer on rank 1 (latency_mt). 2.
 *
 *   test        ranks  sizes          iters  warmup  divisor  figure
 *   latency     2      0 .. 4194304   10000  100     10       Latency (us)
 *   latency_mt  2      0 .. 4194304   10000  100     10       Latency (us)
 *   bw          2      1 .. 4194304   500    50      25       Bandwidth (MB/s)
 *   bibw        2      1 .. 4194304   500    50      25       Bandwidth (MB/s)
 *   mbw_mr      even   1 .. 4194304   500    50      25       MB/s, Messages/s
 *   barrier     any    none           1000   200     -        Avg Latency(us)
 *   bcast       any    1 .. 1048576   1000   200     10       Avg Latency(us)
 *   reduce      any    4 .. 1048576   1000   200     10       Avg Latency(us)
 *   allreduce   any    4 .. 1048576   1000   200     10       Avg Latency(us)
 *   gather      any    1 .. 1048576   1000   200     10       Avg Latency(us)
 *   scatter     any    1 .. 1048576   1000   200     10       Avg Latency(us)
 *   allgather   any    1 .. 1048576   1000   200     10       Avg Latency(us)
 *   alltoall    any    1 .. 1048576   1000   200     10       Avg Latency(us)
 *   ibarrier    any    none           1000   200     -        Avg Latency(us), Remainder(us)
 *   iallreduce  any    4 .. 1048576   1000   200     10       Avg Latency(us), Remainder(us)
 *   ialltoall   any    1 .. 1048576   1000   200     10       Avg Latency(us), Remainder(us)
 *   init        any    none           -      -       -        none
 *
 * Output, on rank 0's standard output only:
 *
 *   # OSU-style MPI Latency Test
 *   # Size          Latency (us)
 *   0                     0.3129
 *   1                     0.3140
 *
 * A line that starts with '#' is a comment. Every other line has the size in
 * bytes, left-aligned in 10 columns, then each figure right-aligned in 20
 * columns with 4 decimals. Some tests have two figures. barrier and ibarrier have
 * no size: their line is the figures alone, as OSU prints it. init prints
 * only comments. Each line is flushed when its size is done. Exit code: 0 when
 * everything ran, 2 for a usage error (message on standard error), otherwise
 * not 0.
 *
 * What is measured. MB is 10^6 bytes. There is a barrier before each size, and
 * some 60 ms of barriers before the first: a runtime, and the processor, take
 * some milliseconds until they are as fast as they are later.
 *
 *   latency     Rank 0 sends SIZE bytes and receives SIZE bytes back, blocking.
 *               The figure is half the mean time of that round trip.
 *   latency_mt  The same, but rank 1 answers with THREADS threads that each
 *               receive and reply. Needs MPI_THREAD_MULTIPLE.
 *   bw          Rank 0 starts WINDOW non-blocking sends, rank 1 has WINDOW
 *               non-blocking receives; both wait for all; rank 1 then sends a
 *               4-byte acknowledgement, which rank 0 receives. Bytes sent by
 *               rank 0 over the time on rank 0.
 *   bibw        Both ranks start WINDOW receives, then WINDOW sends, then wait
 *               for all. Bytes in both directions over the time on rank 0.
 *   mbw_mr      bw by n/2 pairs at once, rank i to rank i + n/2. Bytes and
 *               messages of all pairs over the mean time of the senders.
 *   barrier     The time of each call, averaged over calls and ranks.
 *   bcast, reduce, allreduce, gather, scatter, allgather, alltoall
 *               The same; an untimed barrier follows each call, so that calls
 *               do not overlap. The root is rank 0. SIZE is the bytes each
 *               rank contributes (to each other rank: alltoall; receives:
 *               scatter). reduce and allreduce sum 4-byte floats: SIZE / 4 of
 *               them, and SIZE must be a multiple of 4.
 *   ibarrier, iallreduce, ialltoall
 *               The time of the call that begins it and of the wait for it,
 *               averaged in the same way; and what remains of that when the
 *               rank computes for as long between the two, beyond computing.
 *   init        MPI_Init, one barrier, MPI_Finalize. The caller takes the time.
 *
 * Each rank has one send and one receive buffer, allocated page-aligned on
 * their own, written once before the first size, and used for every message.
 * Only the threads of latency_mt have a receive buffer each.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 8192, MAX_SIZES = 64, TAG_DATA = 1, TAG_REPLY = 2 };

struct run {
	int rank, ranks;
	size_t size;        /* bytes of one message, or of one rank's share */
	int iters, warmup;  /* for this size */
	int window, threads;
	char *out, *in;     /* send and receive buffer */
	MPI_Request *reqs;  /* 2 * window */
	double extra;       /* second figure, when the test has one */
};

struct test {
	const char *name, *title, *column;
	long min, max;      /* max 0: the test has no sizes */
	int iters, warmup, divisor;
	int per_rank;       /* buffers hold one block for every rank */
	int multiple;       /* the sizes' unit in bytes */
	const char *second; /* column; NULL: there is one figure */
	double (*run)(struct run *); /* the figure counts on rank 0 */
};

static void usage(const char *why)
{
	fprintf(stderr, "osu: %s\n"
		"usage: osu TEST [-m [MIN:]MAX | -s SIZE,...] [-i ITERS] [-x WARMUP] [-w WINDOW] [-t THREADS]\n"
		"tests: latency latency_mt bw bibw mbw_mr barrier bcast reduce allreduce gather scatter allgather alltoall ibarrier iallreduce ialltoall init\n", why);
	exit(2);
}

/* Only once MPI runs: the launcher should see one message, not one per rank. */
static void refuse(const struct run *r, const char *why)
{
	if (r->rank == 0)
		fprintf(stderr, "osu: %s\n", why);
	MPI_Finalize();
	exit(2);
}

static char *buffer(size_t bytes)
{
	void *p = NULL;
	if (posix_memalign(&p, (size_t)sysconf(_SC_PAGESIZE), bytes) != 0) {
		fprintf(stderr, "osu: no memory for a buffer of %zu bytes\n", bytes);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return p;
}

static double latency(struct run *r)
{
	double start = 0;
	int n = (int)r->size, peer = 1 - r->rank;

	for (int i = 0; i < r->warmup + r->iters; i++) {
		if (i == r->warmup)
			start = MPI_Wtime();
		if (r->rank == 0) {
			MPI_Send(r->out, n, MPI_CHAR, peer, TAG_DATA, MPI_COMM_WORLD);
			MPI_Recv(r->in, n, MPI_CHAR, peer, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			MPI_Recv(r->in, n, MPI_CHAR, peer, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(r->out, n, MPI_CHAR, peer, TAG_DATA, MPI_COMM_WORLD);
		}
	}
	return (MPI_Wtime() - start) * 1e6 / r->iters / 2;
}

struct answerer {
	struct run *run;
	int messages;
	char *in;
};

static void *answer(void *arg)
{
	struct answerer *a = arg;
	int n = (int)a->run->size;

	for (int i = 0; i < a->messages; i++) {
		MPI_Recv(a->in, n, MPI_CHAR, 0, TAG_DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(a->run->out, n, MPI_CHAR, 0, TAG_REPLY, MPI_COMM_WORLD);
	}
	return NULL;
}

static double latency_mt(struct run *r)
{
	double start = 0;
	int n = (int)r->size, total = r->warmup + r->iters;

	if (r->rank == 0) {
		for (int i = 0; i < total; i++) {
			if (i == r->warmup)
				start = MPI_Wtime();
			MPI_Send(r->out, n, MPI_CHAR, 1, TAG_DATA, MPI_COMM_WORLD);
			MPI_Recv(r->in, n, MPI_CHAR, 1, TAG_REPLY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		}
		return (MPI_Wtime() - start) * 1e6 / r->iters / 2;
	}

	/* The shares add up to the messages that rank 0 sends, so every thread ends. */
	pthread_t thread[r->threads];
	struct answerer a[r->threads];
	for (int t = 0; t < r->threads; t++) {
		a[t] = (struct answerer){r, total / r->threads + (t < total % r->threads), buffer(r->size + 1)};
		if (pthread_create(&thread[t], NULL, answer, &a[t]) != 0) {
			fprintf(stderr, "osu: cannot start thread %d of %d\n", t + 1, r->threads);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
	}
	for (int t = 0; t < r->threads; t++) {
		pthread_join(thread[t], NULL);
		free(a[t].in);
	}
	return 0;
}

/* Streams windows from one rank of a pair to the other; seconds on the sender. */
static double stream(struct run *r, int peer, int sending)
{
	double start = 0;
	int n = (int)r->size;

	for (int i = 0; i < r->warmup + r->iters; i++) {
		if (i == r->warmup)
			start = MPI_Wtime();
		if (sending) {
			for (int w = 0; w < r->window; w++)
				MPI_Isend(r->out, n, MPI_CHAR, peer, TAG_DATA, MPI_COMM_WORLD, &r->reqs[w]);
			MPI_Waitall(r->window, r->reqs, MPI_STATUSES_IGNORE);
			MPI_Recv(r->in, 4, MPI_CHAR, peer, TAG_REPLY, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			for (int w = 0; w < r->window; w++)
				MPI_Irecv(r->in, n, MPI_CHAR, peer, TAG_DATA, MPI_COMM_WORLD, &r->reqs[w]);
			MPI_Waitall(r->window, r->reqs, MPI_STATUSES_IGNORE);
			MPI_Send(r->out, 4, MPI_CHAR, peer, TAG_REPLY, MPI_COMM_WORLD);
		}
	}
	return MPI_Wtime() - start;
}

static double messages(const struct run *r)
{
	return (double)r->iters * r->window;
}

static double bw(struct run *r)
{
	double seconds = stream(r, 1 - r->rank, r->rank == 0);
	return messages(r) * r->size / 1e6 / seconds;
}

static double bibw(struct run *r)
{
	double start = 0;
	int n = (int)r->size, peer = 1 - r->rank;

	for (int i = 0; i < r->warmup + r->iters; i++) {
		if (i == r->warmup)
			start = MPI_Wtime();
		for (int w = 0; w < r->window; w++)
			MPI_Irecv(r->in, n, MPI_CHAR, peer, TAG_DATA, MPI_COMM_WORLD, &r->reqs[w]);
		for (int w = 0; w < r->window; w++)
			MPI_Isend(r->out, n, MPI_CHAR, peer, TAG_DATA, MPI_COMM_WORLD, &r->reqs[r->window + w]);
		MPI_Waitall(2 * r->window, r->reqs, MPI_STATUSES_IGNORE);
	}
	return 2 * messages(r) * r->size / 1e6 / (MPI_Wtime() - start);
}

static double mbw_mr(struct run *r)
{
	int pairs = r->ranks / 2, sending = r->rank < pairs;
	double seconds = stream(r, sending ? r->rank + pairs : r->rank - pairs, sending), sum = 0;

	if (!sending)
		seconds = 0;
	MPI_Reduce(&seconds, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
	r->extra = pairs * messages(r) / (sum / pairs);
	return r->extra * r->size / 1e6;
}

/* Defines a test that times CALL, followed by AFTER outside the clock. */
#define COLLECTIVE(name, CALL, AFTER)                                                       \
	static double name(struct run *r)                                                   \
	{                                                                                   \
		int n = (int)r->size;                                                       \
		double spent = 0, sum = 0;                                                  \
		(void)n;                                                                    \
		for (int i = 0; i < r->warmup + r->iters; i++) {                            \
			double start = MPI_Wtime();                                         \
			CALL;                                                               \
			if (i >= r->warmup)                                                 \
				spent += MPI_Wtime() - start;                               \
			AFTER;                                                              \
		}                                                                           \
		MPI_Reduce(&spent, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);        \
		return sum * 1e6 / r->iters / r->ranks;                                     \
	}
#define APART MPI_Barrier(MPI_COMM_WORLD)

COLLECTIVE(barrier, MPI_Barrier(MPI_COMM_WORLD), )
COLLECTIVE(bcast, MPI_Bcast(r->out, n, MPI_CHAR, 0, MPI_COMM_WORLD), APART)
COLLECTIVE(reduce, MPI_Reduce(r->out, r->in, n / 4, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD), APART)
COLLECTIVE(allreduce, MPI_Allreduce(r->out, r->in, n / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD), APART)
COLLECTIVE(gather, MPI_Gather(r->out, n, MPI_CHAR, r->in, n, MPI_CHAR, 0, MPI_COMM_WORLD), APART)
COLLECTIVE(scatter, MPI_Scatter(r->out, n, MPI_CHAR, r->in, n, MPI_CHAR, 0, MPI_COMM_WORLD), APART)
COLLECTIVE(allgather, MPI_Allgather(r->out, n, MPI_CHAR, r->in, n, MPI_CHAR, MPI_COMM_WORLD), APART)
COLLECTIVE(alltoall, MPI_Alltoall(r->out, n, MPI_CHAR, r->in, n, MPI_CHAR, MPI_COMM_WORLD), APART)

/* Uses the core for so many seconds. */
static void compute(double seconds)
{
	double end;

	if (seconds > 0)
		for (end = MPI_Wtime() + seconds; MPI_Wtime() < end;)
			;
}

/*
 * Defines a test that times CALL, which begins *req, and the wait for it: by
 * themselves, and with work between them.
 */
#define NONBLOCKING(name, CALL)                                                             \
	static double name##_beside(const struct run *r, double work)                       \
	{                                                                                   \
		int n = (int)r->size;                                                       \
		double spent = 0, sum = 0;                                                  \
		MPI_Request request, *req = &request;                                       \
		(void)n;                                                                    \
		for (int i = 0; i < r->warmup + r->iters; i++) {                            \
			double start = MPI_Wtime();                                         \
			CALL;                                                               \
			compute(work);                                                      \
			MPI_Wait(req, MPI_STATUS_IGNORE);                                   \
			if (i >= r->warmup)                                                 \
				spent += MPI_Wtime() - start;                               \
			APART;                                                              \
		}                                                                           \
		MPI_Allreduce(&spent, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);        \
		return sum / r->iters / r->ranks;                                           \
	}                                                                                   \
	static double name(struct run *r)                                                   \
	{                                                                                   \
		double alone = name##_beside(r, 0);                                         \
		r->extra = (name##_beside(r, alone) - alone) * 1e6;                         \
		return alone * 1e6;                                                         \
	}

NONBLOCKING(ibarrier, MPI_Ibarrier(MPI_COMM_WORLD, req))
NONBLOCKING(iallreduce, MPI_Iallreduce(r->out, r->in, n / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, req))
NONBLOCKING(ialltoall, MPI_Ialltoall(r->out, n, MPI_CHAR, r->in, n, MPI_CHAR, MPI_COMM_WORLD, req))

#define US "Latency (us)"
#define MBS "Bandwidth (MB/s)"
#define AVG "Avg Latency(us)"
#define REMAINDER "Remainder(us)"

static const struct test tests[] = {
	{"latency", "Latency", US, 0, 4 << 20, 10000, 100, 10, 0, 1, NULL, latency},
	{"latency_mt", "Multi-threaded Latency", US, 0, 4 << 20, 10000, 100, 10, 0, 1, NULL, latency_mt},
	{"bw", "Bandwidth", MBS, 1, 4 << 20, 500, 50, 25, 0, 1, NULL, bw},
	{"bibw", "Bi-Directional Bandwidth", MBS, 1, 4 << 20, 500, 50, 25, 0, 1, NULL, bibw},
	{"mbw_mr", "Multiple Bandwidth / Message Rate", "MB/s", 1, 4 << 20, 500, 50, 25, 0, 1, "Messages/s", mbw_mr},
	{"barrier", "Barrier Latency", AVG, 0, 0, 1000, 200, 1, 0, 1, NULL, barrier},
	{"bcast", "Broadcast Latency", AVG, 1, 1 << 20, 1000, 200, 10, 0, 1, NULL, bcast},
	{"reduce", "Reduce Latency", AVG, 4, 1 << 20, 1000, 200, 10, 0, 4, NULL, reduce},
	{"allreduce", "Allreduce Latency", AVG, 4, 1 << 20, 1000, 200, 10, 0, 4, NULL, allreduce},
	{"gather", "Gather Latency", AVG, 1, 1 << 20, 1000, 200, 10, 1, 1, NULL, gather},
	{"scatter", "Scatter Latency", AVG, 1, 1 << 20, 1000, 200, 10, 1, 1, NULL, scatter},
	{"allgather", "Allgather Latency", AVG, 1, 1 << 20, 1000, 200, 10, 1, 1, NULL, allgather},
	{"alltoall", "All-to-All Latency", AVG, 1, 1 << 20, 1000, 200, 10, 1, 1, NULL, alltoall},
	{"ibarrier", "Non-blocking Barrier Latency", AVG, 0, 0, 1000, 200, 1, 0, 1, REMAINDER, ibarrier},
	{"iallreduce", "Non-blocking Allreduce Latency", AVG, 4, 1 << 20, 1000, 200, 10, 0, 4, REMAINDER, iallreduce},
	{"ialltoall", "Non-blocking All-to-All Latency", AVG, 1, 1 << 20, 1000, 200, 10, 1, 1, REMAINDER, ialltoall},
	{"init", "Init", NULL, 0, 0, 0, 0, 1, 0, 1, NULL, NULL},
};

static const struct test *find(const char *name)
{
	for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
		if (strcmp(tests[i].name, name) == 0)
			return &tests[i];
	usage("no such test");
	return NULL;
}

static long number(const char *s, const char **end)
{
	char *e;
	long v = strtol(s, &e, 10);
	if (e == s || v < 0 || v > 1L << 30)
		usage("a number is missing, negative or above 2^30");
	*end = e;
	return v;
}

static int whole(const char *s, long least)
{
	const char *e;
	long v = number(s, &e);
	if (*e != 0 || v < least)
		usage("an option's value is not a number, or too small");
	return (int)v;
}

/* Reads -s into sizes; returns how many there are. */
static int parse_list(const char *s, long *sizes)
{
	int n = 0;
	for (;; s++) {
		if (n == MAX_SIZES)
			usage("-s takes at most 64 sizes");
		sizes[n++] = number(s, &s);
		if (*s == 0)
			return n;
		if (*s != ',')
			usage("-s wants sizes with commas between them");
	}
}

/* Fills sizes with min, 2 min, ... max; returns how many there are. */
static int series(long min, long max, long *sizes)
{
	int n = 0;
	for (long s = min; s <= max && n < MAX_SIZES; s = s == 0 ? 1 : 2 * s)
		sizes[n++] = s;
	return n;
}

static double seconds_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Rank 0 tells the others when it has been enough. */
static void warm_up(const struct run *r)
{
	double end;
	int more = 1;

	MPI_Barrier(MPI_COMM_WORLD); /* until all are there */
	end = seconds_now() + 60e-3;
	while (more) {
		for (int i = 0; i < 10; i++)
			MPI_Barrier(MPI_COMM_WORLD);
		if (r->rank == 0)
			more = seconds_now() < end;
		MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
}

/* Runs the test at each size and prints as it goes. */
static void measure(const struct test *t, struct run *r, const long *sizes, int n, int iters, int warmup)
{
	size_t blocks = t->per_rank ? (size_t)r->ranks : 1, largest = 4; /* the acknowledgement's 4 bytes */

	for (int i = 0; i < n; i++)
		if ((size_t)sizes[i] > largest)
			largest = (size_t)sizes[i];
	r->out = buffer(largest * blocks);
	r->in = buffer(largest * blocks);
	for (size_t i = 0; i < largest * blocks / sizeof(float); i++) {
		((float *)r->out)[i] = 1;
		((float *)r->in)[i] = 0;
	}
	r->reqs = malloc(2 * (size_t)r->window * sizeof *r->reqs);
	if (r->reqs == NULL)
		refuse(r, "no memory for the requests of the window");

	if (r->rank == 0 && t->max == 0)
		printf("# %s%s%s\n", t->column, t->second ? ", " : "", t->second ? t->second : "");
	else if (r->rank == 0)
		printf("%-10s%20s%20s\n", "# Size", t->column, t->second ? t->second : "");
	for (int i = 0; i < n; i++) {
		int divisor = sizes[i] > LARGE ? t->divisor : 1;
		r->size = (size_t)sizes[i];
		r->iters = iters / divisor > 0 ? iters / divisor : 1;
		r->warmup = warmup / divisor;
		MPI_Barrier(MPI_COMM_WORLD);
		double figure = t->run(r);
		if (r->rank != 0)
			continue;
		if (t->max == 0)
			printf("%30.4f", figure);
		else
			printf("%-10ld%20.4f", sizes[i], figure);
		if (t->second)
			printf("%20.4f", r->extra);
		printf("\n");
		fflush(stdout);
	}
	free(r->reqs);
	free(r->out);
	free(r->in);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		usage("which test?");
	const struct test *t = find(argv[1]);
	struct run r = {.window = 64, .threads = 2};
	long sizes[MAX_SIZES], min = t->min, max = t->max;
	int n = 0, iters = t->iters, warmup = t->warmup, option;

	optind = 2;
	while ((option = getopt(argc, argv, "m:s:i:x:w:t:")) != -1) {
		const char *e = NULL;
		switch (option) {
		case 'm':
			max = number(optarg, &e);
			if (*e == ':') {
				min = max;
				max = number(e + 1, &e);
			}
			if (*e != 0 || min > max)
				usage("-m wants MAX or MIN:MAX");
			break;
		case 's': n = parse_list(optarg, sizes); break;
		case 'i': iters = whole(optarg, 1); break;
		case 'x': warmup = whole(optarg, 0); break;
		case 'w': r.window = whole(optarg, 1); break;
		case 't': r.threads = whole(optarg, 1); break;
		default: usage("unknown option, or its value is missing");
		}
	}
	if (optind != argc)
		usage("a word too many");
	if (t->max == 0)
		n = series(0, 0, sizes);
	else if (n == 0)
		n = series(min, max, sizes);
	for (int i = 0; i < n; i++)
		if (sizes[i] % t->multiple != 0 || (sizes[i] == 0 && t->min > 0 && t->multiple > 1))
			usage("sums of floats take multiples of 4 bytes, from 4");

	int threads = strcmp(t->name, "latency_mt") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, provided;
	double start = seconds_now();
	if (threads == MPI_THREAD_SINGLE)
		MPI_Init(NULL, NULL);
	else
		MPI_Init_thread(NULL, NULL, threads, &provided);
	double ready = seconds_now() - start;
	MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &r.ranks);

	if (threads == MPI_THREAD_MULTIPLE && provided < threads)
		refuse(&r, "latency_mt needs MPI_THREAD_MULTIPLE, which this MPI does not provide");
	if ((t->run == latency || t->run == latency_mt || t->run == bw || t->run == bibw) && r.ranks != 2)
		refuse(&r, "this test runs with exactly 2 ranks");
	if (t->run == mbw_mr && r.ranks % 2 != 0)
		refuse(&r, "mbw_mr runs with an even number of ranks");
	if (r.rank == 0)
		printf("# OSU-style MPI %s Test\n", t->title);
	if (t->run != NULL) {
		warm_up(&r);
		measure(t, &r, sizes, n, iters, warmup);
	} else {
		MPI_Barrier(MPI_COMM_WORLD);
		if (r.rank == 0)
			printf("# MPI_Init took %.3f ms on rank 0\n", ready * 1e3);
	}
	MPI_Finalize();
	return 0;
}
