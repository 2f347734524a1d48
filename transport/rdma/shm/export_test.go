//go:build linux

package shm

const (
	SegmentBytes = segmentBytes
	BulkSlots    = bulkSlots
)
