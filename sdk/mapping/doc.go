// Package mapping keeps memory of other processes mapped, for transports that
// reach it by importing a handle: shared memory, device memory, anything where
// an import is too dear for each copy. It knows no driver: an [Import] function
// that the author writes does.
//
// # What it guarantees
//
// A [Cache] is told what is current ([Cache.Announce]) and asked for leases of
// it ([Cache.Acquire]). Each mapping is bound to the publication it was imported
// for: the provider's life, the address there, and the capability. So after an
// Announce has returned no lease is given of what was at that place before,
// although address, length and even the handle's bytes may be equal. A lease
// that is refused is safe: the caller reads the provider's descriptor anew,
// announces, asks once more, and fails if that is refused, too.
//
// A mapping stays while a lease of it is held. It is retired when it is
// replaced, withdrawn, idle, in the way of another one, when its provider is
// dead, or when the cache is closed: there is one retirement, whatever the
// cause, and it happens once. Nothing leases the mapping any more; the leases
// that are held end; then the steps of its cleanup run in the order of their
// [Stage]. A step that the driver refuses is tried again until it succeeds, and
// later steps wait for it; [Cache.Mappings] shows it. Nothing is forgotten.
//
// Older peers give no capability. A mapping is then kept from one descriptor to
// the next only if its [Kind] says that handles are unique and the bytes are
// equal.
//
// # How a transport uses it
//
//   - Write an [Import] that adds each resource to the [Cleanup] as soon as it
//     has it, and returns what a copy needs, such as an address.
//   - Announce what is about to be used, once per descriptor version. One that
//     is known costs a comparison, under the cache's lock. With capabilities it
//     is enough to announce when a lease is refused as stale, and ask again.
//   - Each worker has a [Local]. It acquires, copies, and releases when the copy
//     has ended, which is later than its submission.
//   - When the provider withdraws a region, call [Cache.Withdraw] and answer once
//     it returned nil. When it is dead, call [Cache.RetireProvider].
//   - At the end, [Cache.Close]; its error says what is still held.
//
// # What it does not do
//
// It does not learn by itself that a provider has restarted or withdrawn
// something; it does not refresh descriptors, and repeats no import: that is the
// engine's. It cannot stop a copy that holds a lease.
package mapping
