// Package memory is what a transport knows of memory that it moves by itself:
// the regions of its own application, mapped while they are registered, and
// what was announced of peers' regions. Both count their uses, so that to
// forget a region is to wait for those under way.
//
// A region is host memory: a memfd that cannot shrink, so that nothing that is
// done to its file makes an access fail. Nobody but a holder of a use touches a
// mapping.
//
// [Table] has the methods of [sdk.Mover] that are about regions.
package memory

import "context"

// Table is both: a transport embeds it. Its zero value is ready.
type Table struct {
	Regions
	Remotes
}

// Close forgets all regions, as Deregister does, and takes no more. Those of
// peers are only names.
func (t *Table) Close(ctx context.Context) error { return t.Regions.Close(ctx) }
