package mapping_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mapping"
)

// memory is what the example's importer makes of a source: a transport would
// have an address here.
type memory []byte

// A transport that reads memory which providers share under a name.
func Example() {
	shared := map[string]memory{"first": []byte("hello"), "second": []byte("world")}
	imports := func(_ context.Context, s mapping.Source, c *mapping.Cleanup) (memory, error) {
		name := string(s.Handle)
		fmt.Println("open", name)
		c.Add(mapping.CloseDescriptor, "close "+name, func() error {
			fmt.Println("close", name)
			return nil
		})
		m, ok := shared[name]
		if !ok {
			return nil, sdk.Errorf(sdk.Refused, "there is no memory %q", name)
		}
		fmt.Println("map", name)
		c.Add(mapping.Unmap, "unmap "+name, func() error {
			fmt.Println("unmap", name)
			return nil
		})
		return m, nil
	}
	ctx := context.Background()
	cache := mapping.New(imports, mapping.Options{})
	worker := cache.NewLocal() // one per goroutine that copies
	defer worker.Close()

	// What the provider's descriptor says. The capability is random in reality.
	source := mapping.Source{
		Key:     mapping.Key{Provider: sdk.Incarnation{15: 1}, Base: 0x7f0000000000, Capability: sdk.Capability{1}},
		Length:  5,
		Kind:    mapping.Kind{Name: "shared memory"},
		Handle:  []byte("first"),
		Version: 1,
	}
	read := func(k mapping.Key) error {
		lease, err := worker.Acquire(ctx, k, 0, 5)
		if err != nil {
			return err
		}
		defer lease.Release() // once the copy has ended
		fmt.Printf("%s\n", lease.Mapping())
		return nil
	}
	if err := cache.Announce(source); err != nil {
		fmt.Println(err)
	}
	_ = read(source.Key)
	_ = read(source.Key)

	// The provider registers other memory at the same address.
	old := source.Key
	source.Capability, source.Handle, source.Version = sdk.Capability{2}, []byte("second"), 2
	if err := cache.Announce(source); err != nil {
		fmt.Println(err)
	}
	if err := cache.Withdraw(ctx, old); err != nil { // waits until it is gone
		fmt.Println(err)
	}
	fmt.Println("the old capability is stale:", errors.Is(read(old), sdk.StaleCapability))
	_ = read(source.Key)
	if err := cache.Close(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// open first
	// map first
	// hello
	// hello
	// unmap first
	// close first
	// the old capability is stale: true
	// open second
	// map second
	// world
	// unmap second
	// close second
}
