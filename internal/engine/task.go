package engine

// A Task is a request that a goroutine of the library works on: a non-blocking
// collective.
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
		b.choices.posts++
		o.choice = b.choices.posts
	}
	b.mu.Unlock()
	b.e.tasks.Add(1)
	id := callID{m.Context, m.Tag}
	if o.choice != 0 {
		b.turns.begin(id, o.choice)
	}
	return Task{o, id}, Request{op: o, use: o.now()}
}

// Finish ends the task, which sends no more. Once.
func (t Task) Finish(err error) {
	if t.op.choice != 0 {
		t.op.box.turns.end(t.op.box, t.id)
	}
	t.op.box.e.tasks.Add(-1)
	t.op.err = err
	t.op.finish()
}
