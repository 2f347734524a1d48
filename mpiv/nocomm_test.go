package mpiv_test

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// saysNoComm tells what is wrong with an error for a Comm that is nil: nothing, mostly.
func saysNoComm(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, mpiv.ErrComm)
	require.ErrorContains(t, err, "communicator is nil: Split")
	var re *mpiv.RankError
	require.ErrorAs(t, err, &re)
	require.NotEmpty(t, re.Op)
	require.Equal(t, -1, re.Rank)
}

// Every method of a Comm that is nil fails with ErrComm; those without an error panic with it.
func TestMethodsOfNoComm(t *testing.T) {
	saysNoComm(t, (*mpiv.Cart)(nil).Free())
	for _, receiver := range []any{(*mpiv.Comm)(nil), (*mpiv.Cart)(nil)} {
		of := reflect.TypeOf(receiver)
		for m := range of.Methods() {
			if _, promoted := reflect.TypeFor[*mpiv.Comm]().MethodByName(m.Name); promoted && of != reflect.TypeFor[*mpiv.Comm]() {
				continue // Go looks for the Comm in what is nil, and calls nothing
			}
			t.Run(of.Elem().Name()+"."+m.Name, func(t *testing.T) {
				args := []reflect.Value{reflect.ValueOf(receiver)}
				for i := 1; i < m.Type.NumIn() && !(m.Type.IsVariadic() && i == m.Type.NumIn()-1); i++ {
					arg := reflect.Zero(m.Type.In(i))
					if arg.Type() == reflect.TypeFor[context.Context]() {
						arg = reflect.ValueOf(t.Context())
					}
					args = append(args, arg)
				}
				n := m.Type.NumOut()
				if n == 0 || m.Type.Out(n-1) != reflect.TypeFor[error]() {
					defer func() {
						err, _ := recover().(error)
						saysNoComm(t, err)
					}()
				}
				results := m.Func.Call(args)
				err, _ := results[n-1].Interface().(error)
				saysNoComm(t, err)
			})
		}
	}
}

// waited is the error of a request.
func waited(ctx context.Context, r mpiv.Request) error {
	_, err := r.Wait(ctx)
	return err
}

func started(ctx context.Context, p *mpiv.Persistent) error {
	if err := p.Start(); err != nil {
		return err
	}
	_, err := p.Wait(ctx)
	return err
}

// second is the error of what returns something beside it.
func second[V any](_ V, err error) error { return err }

func third[V, W any](_ V, _ W, err error) error { return err }

type args struct {
	ctx     context.Context
	in, out []int
	root    int // or peer
}

// onNoComm is every function that takes a Comm, called with nil, and otherwise with what is right for a rank
// that is alone, or wrong.
var onNoComm = map[string]func(a args) error{
	"Send":            func(a args) error { return mpiv.Send(a.ctx, nil, a.in, a.root, 0) },
	"Ssend":           func(a args) error { return mpiv.Ssend(a.ctx, nil, a.in, a.root, 0) },
	"Rsend":           func(a args) error { return mpiv.Rsend(a.ctx, nil, a.in, a.root, 0) },
	"Bsend":           func(a args) error { return mpiv.Bsend(a.ctx, nil, a.in, a.root, 0) },
	"Isend":           func(a args) error { return waited(a.ctx, mpiv.Isend(nil, a.in, a.root, 0)) },
	"Issend":          func(a args) error { return waited(a.ctx, mpiv.Issend(nil, a.in, a.root, 0)) },
	"Irsend":          func(a args) error { return waited(a.ctx, mpiv.Irsend(nil, a.in, a.root, 0)) },
	"Ibsend":          func(a args) error { return waited(a.ctx, mpiv.Ibsend(nil, a.in, a.root, 0)) },
	"Irecv":           func(a args) error { return waited(a.ctx, mpiv.Irecv(nil, a.out, a.root, 0)) },
	"Recv":            func(a args) error { return second(mpiv.Recv(a.ctx, nil, a.out, a.root, 0)) },
	"RecvAlloc":       func(a args) error { return third(mpiv.RecvAlloc[int](a.ctx, nil, a.root, 0)) },
	"Sendrecv":        func(a args) error { return second(mpiv.Sendrecv(a.ctx, nil, a.in, a.root, 0, a.out, a.root, 0)) },
	"SendrecvReplace": func(a args) error { return second(mpiv.SendrecvReplace(a.ctx, nil, a.in, a.root, 0, a.root, 0)) },
	"Probe":           func(a args) error { return second(mpiv.Probe(a.ctx, nil, a.root, 0)) },
	"Iprobe":          func(a args) error { return third(mpiv.Iprobe(nil, a.root, 0)) },
	"Mprobe":          func(a args) error { return third(mpiv.Mprobe(a.ctx, nil, a.root, 0)) },
	"Improbe":         func(a args) error { return third(mpiv.Improbe(nil, a.root, 0)) },
	"SendInit":        func(a args) error { return started(a.ctx, mpiv.SendInit(nil, a.in, a.root, 0)) },
	"SsendInit":       func(a args) error { return started(a.ctx, mpiv.SsendInit(nil, a.in, a.root, 0)) },
	"BsendInit":       func(a args) error { return started(a.ctx, mpiv.BsendInit(nil, a.in, a.root, 0)) },
	"RsendInit":       func(a args) error { return started(a.ctx, mpiv.RsendInit(nil, a.in, a.root, 0)) },
	"RecvInit":        func(a args) error { return started(a.ctx, mpiv.RecvInit(nil, a.out, a.root, 0)) },
	"BufferAttach":    func(a args) error { return mpiv.BufferAttach(nil, a.root) },
	"BufferDetach":    func(a args) error { return second(mpiv.BufferDetach(a.ctx, nil)) },
	"SendObj":         func(a args) error { return mpiv.SendObj(a.ctx, nil, a.in, a.root, 0) },
	"IsendObj":        func(a args) error { return waited(a.ctx, mpiv.IsendObj(nil, a.in, a.root, 0)) },
	"RecvObj":         func(a args) error { return third(mpiv.RecvObj[int](a.ctx, nil, a.root, 0)) },
	"BcastObj":        func(a args) error { return second(mpiv.BcastObj(a.ctx, nil, a.in, a.root)) },
	"GatherObj":       func(a args) error { return second(mpiv.GatherObj(a.ctx, nil, a.in, a.root)) },
	"AllgatherObj":    func(a args) error { return second(mpiv.AllgatherObj(a.ctx, nil, a.in)) },
	"ScatterObj":      func(a args) error { return second(mpiv.ScatterObj(a.ctx, nil, a.in, a.root)) },
	"Barrier":         func(a args) error { return mpiv.Barrier(a.ctx, nil) },
	"Ibarrier":        func(a args) error { return waited(a.ctx, mpiv.Ibarrier(a.ctx, nil)) },
	"Bcast":           func(a args) error { return mpiv.Bcast(a.ctx, nil, a.in, a.root) },
	"Ibcast":          func(a args) error { return waited(a.ctx, mpiv.Ibcast(a.ctx, nil, a.in, a.root)) },
	"Gather":          func(a args) error { return mpiv.Gather(a.ctx, nil, a.in, a.out, a.root) },
	"Igather":         func(a args) error { return waited(a.ctx, mpiv.Igather(a.ctx, nil, a.in, a.out, a.root)) },
	"Gatherv":         func(a args) error { return mpiv.Gatherv(a.ctx, nil, a.in, a.out, a.in, nil, a.root) },
	"Igatherv":        func(a args) error { return waited(a.ctx, mpiv.Igatherv(a.ctx, nil, a.in, a.out, a.in, nil, a.root)) },
	"Scatter":         func(a args) error { return mpiv.Scatter(a.ctx, nil, a.in, a.out, a.root) },
	"Iscatter":        func(a args) error { return waited(a.ctx, mpiv.Iscatter(a.ctx, nil, a.in, a.out, a.root)) },
	"Scatterv":        func(a args) error { return mpiv.Scatterv(a.ctx, nil, a.in, a.in, nil, a.out, a.root) },
	"Iscatterv":       func(a args) error { return waited(a.ctx, mpiv.Iscatterv(a.ctx, nil, a.in, a.in, nil, a.out, a.root)) },
	"Allgather":       func(a args) error { return mpiv.Allgather(a.ctx, nil, a.in, a.out) },
	"Iallgather":      func(a args) error { return waited(a.ctx, mpiv.Iallgather(a.ctx, nil, a.in, a.out)) },
	"Allgatherv":      func(a args) error { return mpiv.Allgatherv(a.ctx, nil, a.in, a.out, a.in, nil) },
	"Iallgatherv":     func(a args) error { return waited(a.ctx, mpiv.Iallgatherv(a.ctx, nil, a.in, a.out, a.in, nil)) },
	"Alltoall":        func(a args) error { return mpiv.Alltoall(a.ctx, nil, a.in, a.out) },
	"Ialltoall":       func(a args) error { return waited(a.ctx, mpiv.Ialltoall(a.ctx, nil, a.in, a.out)) },
	"Alltoallv":       func(a args) error { return mpiv.Alltoallv(a.ctx, nil, a.in, a.in, nil, a.out, a.in, nil) },
	"Ialltoallv": func(a args) error {
		return waited(a.ctx, mpiv.Ialltoallv(a.ctx, nil, a.in, a.in, nil, a.out, a.in, nil))
	},
	"Reduce":              func(a args) error { return mpiv.Reduce(a.ctx, nil, a.in, a.out, mpiv.Sum, a.root) },
	"Ireduce":             func(a args) error { return waited(a.ctx, mpiv.Ireduce(a.ctx, nil, a.in, a.out, mpiv.Sum, a.root)) },
	"Allreduce":           func(a args) error { return mpiv.Allreduce(a.ctx, nil, a.in, a.out, mpiv.Sum) },
	"Iallreduce":          func(a args) error { return waited(a.ctx, mpiv.Iallreduce(a.ctx, nil, a.in, a.out, mpiv.Sum)) },
	"ReduceScatter":       func(a args) error { return mpiv.ReduceScatter(a.ctx, nil, a.in, a.out, a.in, mpiv.Sum) },
	"IreduceScatter":      func(a args) error { return waited(a.ctx, mpiv.IreduceScatter(a.ctx, nil, a.in, a.out, a.in, mpiv.Sum)) },
	"ReduceScatterBlock":  func(a args) error { return mpiv.ReduceScatterBlock(a.ctx, nil, a.in, a.out, mpiv.Sum) },
	"IreduceScatterBlock": func(a args) error { return waited(a.ctx, mpiv.IreduceScatterBlock(a.ctx, nil, a.in, a.out, mpiv.Sum)) },
	"Scan":                func(a args) error { return mpiv.Scan(a.ctx, nil, a.in, a.out, mpiv.Sum) },
	"Iscan":               func(a args) error { return waited(a.ctx, mpiv.Iscan(a.ctx, nil, a.in, a.out, mpiv.Sum)) },
	"Exscan":              func(a args) error { return mpiv.Exscan(a.ctx, nil, a.in, a.out, mpiv.Sum) },
	"Iexscan":             func(a args) error { return waited(a.ctx, mpiv.Iexscan(a.ctx, nil, a.in, a.out, mpiv.Sum)) },
	"Dup":                 func(a args) error { return second(mpiv.Dup(a.ctx, nil)) },
	"Split":               func(a args) error { return second(mpiv.Split(a.ctx, nil, a.root, 0)) },
	"Create":              func(a args) error { return second(mpiv.Create(a.ctx, nil, mpiv.Group{})) },
	"CreateGroup":         func(a args) error { return second(mpiv.CreateGroup(a.ctx, nil, mpiv.Group{}, a.root)) },
	"CartCreate":          func(a args) error { return second(mpiv.CartCreate(a.ctx, nil, a.in, nil)) },
}

// Every function that takes a Comm fails with ErrComm if that is nil, whatever else it is given.
func TestFunctionsOnNoComm(t *testing.T) {
	for name := range functionsOfComm(t) {
		call := onNoComm[name]
		require.NotNil(t, call, "mpiv.%s takes a *Comm: call it in onNoComm", name)
		for _, x := range []struct {
			what string
			args
		}{
			{"right", args{t.Context(), []int{1}, []int{0}, 0}},
			{"wrong", args{t.Context(), []int{1, 2, 3}, nil, -7}},
			{"nothing", args{t.Context(), nil, nil, mpiv.ProcNull}},
			{"large", args{t.Context(), make([]int, 1<<17), make([]int, 1<<17), 1 << 20}},
		} {
			t.Run(fmt.Sprintf("%s/%s", name, x.what), func(t *testing.T) {
				err := call(x.args)
				saysNoComm(t, err)
				var re *mpiv.RankError
				require.ErrorAs(t, err, &re)
				require.Regexp(t, `^nocomm_test\.go:\d+$`, re.Where)
			})
		}
	}
}

// functionsOfComm is the exported functions of package mpiv that take a *Comm.
func functionsOfComm(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	names := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, d := range f.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !f.Name.IsExported() {
				continue
			}
			for _, p := range f.Type.Params.List {
				if s, ok := p.Type.(*ast.StarExpr); ok && fmt.Sprint(s.X) == "Comm" {
					names[f.Name.Name] = true
				}
			}
		}
	}
	require.Greater(t, len(names), 60)
	return names
}

// Requests of no Comm can be tested and waited for beside others.
func TestRequestsOfNoComm(t *testing.T) {
	err := mpiv.Run(t.Context(), 1, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
		part, err := mpiv.Split(ctx, world, mpiv.Undefined, 0)
		require.NoError(t, err)
		require.Nil(t, part)
		into := []int{0}
		rs := []mpiv.Request{mpiv.Irecv(world, into, 0, 1), mpiv.Irecv(part, into, 0, 1)}
		saysNoComm(t, mpiv.Waitall(ctx, rs, nil))
		if err := mpiv.Send(ctx, world, []int{7}, 0, 1); err != nil {
			return err
		}
		rs[1] = mpiv.Ibarrier(ctx, part)
		_, done, err := rs[1].Test()
		require.True(t, done)
		saysNoComm(t, err)
		rs[1].Cancel()
		return mpiv.Waitall(ctx, rs, nil)
	})
	require.NoError(t, err)
}
