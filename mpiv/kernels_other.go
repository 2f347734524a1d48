//go:build !amd64

package mpiv

import "reflect"

func vectorize(string, map[reflect.Kind]kernel) {}
