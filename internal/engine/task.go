package engine

// A Task is a request that a goroutine of the library works on: a non-blocking
// collective.
type Task struct{ op *op }

// NewTask is a task and the request that is done when it is finished.
func (b *Box) NewTask() (Task, Request) {
	b.mu.Lock()
	o := b.newOpLocked(KindTask, Match{}, nil)
	b.mu.Unlock()
	return Task{o}, Request{op: o, use: o.now()}
}

// Finish ends the task. Once.
func (t Task) Finish(err error) {
	t.op.err = err
	t.op.finish()
}
