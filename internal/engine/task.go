package engine

import (
	"context"
	"reflect"
)

// A Task is a request that the library works on: a non-blocking collective. Go or Defer
// says who does.
type Task struct {
	op *op
	id callID
}

// NewTask is a task and the request that is done when it is finished. Its messages are
// those with the context, the tag and the check of m.
func (b *Box) NewTask(m Match) (Task, Request) {
	b.mu.Lock()
	o := b.newOpLocked(KindTask, Match{}, nil)
	if b.choices.on.Load() {
		b.choices.done[OfTasks]++
		o.choice, o.series = b.choices.done[OfTasks], OfTasks
	}
	b.mu.Unlock()
	id := callID{m.Context, m.Tag}
	if o.choice != 0 {
		b.turns.begin(id, o.choice)
	}
	return Task{o, id}, Request{op: o, use: o.now()}
}

// Go has run finish the task, in a goroutine of its own.
func (t Task) Go(run func()) { t.op.box.e.goTask(run) }

// goTask is Go for run of a task: who polls meanwhile lets it run.
func (e *Engine) goTask(run func()) {
	e.tasks.Add(1)
	e.Go(func() {
		defer e.tasks.Add(-1)
		run()
	})
}

// Defer leaves the task to who waits for it. run finishes it, and waits for messages alone: nobody
// else waits for what it does. It is called once: by the goroutine that waits for the task with
// ctx, or in one of its own when somebody asks for the task in another way, or sleeps for something else, or asks for it in vain.
func (t Task) Defer(ctx context.Context, run func()) {
	b := t.op.box
	b.mu.Lock()
	t.op.run, t.op.ctx = run, ctx
	b.deferred.push(t.op)
	b.mu.Unlock()
}

// start has o run, if it is a task that is deferred: here, if it may wait with ctx.
func (o *op) start(ctx context.Context) {
	b := o.box
	b.mu.Lock()
	run, of := b.undeferLocked(o)
	b.mu.Unlock()
	switch {
	case run == nil:
	case reflect.ValueOf(ctx).Comparable() && ctx == of:
		run()
	default:
		b.e.goTask(run)
	}
}

// undeferLocked is how to run o, if it is a task that is deferred, which it is not after that.
func (b *Box) undeferLocked(o *op) (run func(), ctx context.Context) {
	if run, ctx = o.run, o.ctx; run != nil {
		b.deferred.remove(o)
		o.run, o.ctx = nil, nil
	}
	return run, ctx
}

// startDeferred has all tasks go on that are deferred, for who waits for something else: where the rank holds too much
// that it has not received what others send waits for its receiver, and each may wait for another task first.
func (b *Box) startDeferred() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for o := b.deferred.head; o != nil; o = b.deferred.head {
		run, _ := b.undeferLocked(o)
		b.e.goTask(run)
	}
}

// Progress is Engine.Progress for who asks in vain for something of b's rank.
func (b *Box) Progress() {
	b.e.Progress()
	b.startDeferred()
}

// Finish ends the task, which sends no more. Once.
func (t Task) Finish(err error) {
	if t.op.choice != 0 {
		t.op.box.turns.end(t.op.box, t.id)
	}
	t.op.err = err
	t.op.finish()
}
