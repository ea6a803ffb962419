//go:build linux

package cudatest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"github.com/hawser-transport/hawser/internal/cuda"
)

func testWrongOrders(b *bench) {
	unmapped := refuses
	if b.Traits.UnmapsNothing {
		unmapped = func(_ string, err error) error { return err }
	}
	b.do(func(c cuda.Context) error {
		unit, err := c.Granularity(0)
		if err != nil {
			return err
		}
		h, err := c.Create(2*unit, 0)
		if err != nil {
			return err
		}
		p, err := c.Reserve(2 * unit)
		if err != nil {
			return err
		}
		_, odd := c.Create(unit+1, 0)
		_, oddReserve := c.Reserve(unit + 1)
		_, shared := c.Export(h, cuda.PosixFD)
		wrong := errors.Join(
			refuses("memory of an odd size", odd),
			refuses("addresses of an odd size", oddReserve),
			refuses("exporting what was not created for it", shared),
			refuses("mapping more than there is", c.Map(p, 4*unit, h)),
			refuses("access to what is not mapped", c.SetAccess(p, 2*unit, true)),
			unmapped("unmapping what is not mapped", c.Unmap(p, 2*unit)),
			c.Map(p, 2*unit, h),
			refuses("mapping twice", c.Map(p, 2*unit, h)),
			c.Release(h),
			c.SetAccess(p, 2*unit, true),
			refuses("freeing addresses that are mapped", c.FreeAddress(p, 2*unit)),
			refuses("unmapping another range", c.Unmap(p+cuda.Ptr(unit), 2*unit)),
			fill(c, b.s, p, 2*unit, 9))
		// The mapping holds the memory, and leads back to it.
		again, err := c.Retain(p + 100)
		return errors.Join(wrong, err, c.Release(again),
			c.Unmap(p, 2*unit),
			unmapped("unmapping twice", c.Unmap(p, 2*unit)),
			c.FreeAddress(p, 2*unit))
	})
}

func testGone(b *bench) {
	b.do(func(c cuda.Context) error {
		gone, err := cuda.Allocate(c, size, 0)
		if err != nil {
			return err
		}
		there, err := cuda.Allocate(c, size, 0)
		if err != nil {
			return err
		}
		if err := gone.Close(c); err != nil {
			return err
		}
		_, pointer := c.Pointer(gone.Base)
		_, retain := c.Retain(gone.Base)
		_, exported := cuda.Export(c, gone.Base, 1, cuda.PosixFD, cuda.IPC)
		return errors.Join(
			refuses("a pointer to memory that is gone", pointer),
			refuses("retaining memory that is gone", retain),
			refuses("exporting memory that is gone", exported),
			// Nothing of that has cost the context.
			fill(c, b.s, there.Base, size, 5),
			holds(c, b.s, there.Base, size, 5),
			there.Close(c))
	})
}

func testReadOnlyMapping(b *bench) {
	b.needs(cuda.PosixFD)
	p := b.Peer(b.T)
	a := p.do(request{Op: "provide", Kind: cuda.PosixFD, Size: size, Value: 6})
	b.do(func(c cuda.Context) error {
		m, err := b.imported(c, a, false)
		if err != nil {
			return err
		}
		return errors.Join(holds(c, b.s, m.Base, size, 6), m.Close(c))
	})
}

func testPointers(b *bench) {
	b.needs(cuda.PosixFD)
	b.do(func(c cuda.Context) error {
		a, err := cuda.Allocate(c, size, cuda.PosixFD)
		if err != nil {
			return err
		}
		i, err := c.Pointer(a.Base + 12345)
		if err == nil && (i.MappingBase != a.Base || i.MappingSize != a.Size || i.Kinds != cuda.PosixFD || i.Device != b.dev.Info().Ordinal) {
			err = fmt.Errorf("%+v is at %#x + 12345, of %d bytes", i, uint64(a.Base), a.Size)
		}
		e, err2 := cuda.Export(c, a.Base+12345, 1000, cuda.Fabric, cuda.IPC, cuda.PosixFD)
		if err2 == nil {
			if e.Kind != cuda.PosixFD || e.Offset != 12345 || e.Size != a.Size {
				err2 = fmt.Errorf("exported as %s, offset %d of %d", e.Kind, e.Offset, e.Size)
			}
			err2 = errors.Join(err2, e.Close(c), e.Close(c))
		}
		_, beyond := cuda.Export(c, a.Base+12345, a.Size, cuda.PosixFD)
		_, unsuited := cuda.Export(c, a.Base, a.Size, cuda.Fabric, cuda.IPC)
		return errors.Join(err, err2, a.Close(c),
			refuses("exporting beyond the allocation", beyond),
			refuses("exporting as what it was not made for", unsuited))
	})
	b.do(func(c cuda.Context) error {
		a, err := cuda.Allocate(c, size, cuda.IPC)
		if err != nil {
			return err
		}
		i, err := c.Pointer(a.Base + 4096)
		if err == nil && (i.Base != a.Base || i.Size != size || i.Kinds&cuda.IPC == 0) {
			err = fmt.Errorf("%+v is at %#x + 4096", i, uint64(a.Base))
		}
		e, err2 := cuda.Export(c, a.Base+4096, 1000, cuda.IPC)
		if err2 == nil && (e.Kind != cuda.IPC || e.Offset != 4096 || e.Size != size) {
			err2 = fmt.Errorf("exported as %s, offset %d of %d", e.Kind, e.Offset, e.Size)
		}
		_, own := c.OpenIPC(e.Shared)
		return errors.Join(err, err2, a.Close(c), refuses("opening one's own IPC handle", own))
	})
}

// testWhere: the device of memory is known without its context, and what is not
// device memory is told apart.
func testWhere(b *bench) {
	b.needs(cuda.PosixFD)
	at := func(p cuda.Ptr, ordinal int) error {
		got, err := b.Driver.Where(p)
		if err == nil && got != ordinal {
			err = fmt.Errorf("the memory at %#x is on GPU %d, not %d", uint64(p), got, ordinal)
		}
		return err
	}
	mem := make([]byte, 4096)
	for i := range b.infos {
		dev, err := b.Driver.Open(i)
		if err != nil {
			b.Fatal(err)
		}
		for _, kind := range []cuda.Kind{cuda.PosixFD, cuda.IPC} {
			var a *cuda.Allocation
			err := dev.Do(func(c cuda.Context) (err error) {
				a, err = cuda.Allocate(c, size, kind)
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			// In another context the memory's extent is not known, its device is.
			b.do(func(c cuda.Context) error { return errors.Join(at(a.Base, i), at(a.Base+size-1, i)) })
			err = dev.Do(func(c cuda.Context) error {
				info, err := c.Pointer(a.Base)
				if err == nil && info.Device != i {
					err = fmt.Errorf("%+v is on GPU %d", info, i)
				}
				return errors.Join(err, a.Close(c))
			})
			if _, gone := b.Driver.Where(a.Base); err == nil {
				err = refuses("memory that is gone", gone)
			}
			if err != nil {
				b.Error(err)
			}
		}
		if err := dev.Close(); err != nil {
			b.Error(err)
		}
	}
	b.do(func(c cuda.Context) error {
		_, heap := b.Driver.Where(cuda.Host(mem))
		return errors.Join(refuses("Go's memory", heap), withHost(c, 1<<16, func(mem []byte) error {
			_, host := b.Driver.Where(cuda.Host(mem))
			_, pointer := c.Pointer(cuda.Host(mem))
			return errors.Join(refuses("host memory", host), refuses("host memory", pointer))
		}))
	})
}

// testSeveral maps two allocations into one range, as an allocator whose
// segments grow does: a copy crosses them, an export does not.
func testSeveral(b *bench) {
	b.needs(cuda.PosixFD)
	b.do(func(c cuda.Context) error {
		unit, err := c.Granularity(cuda.PosixFD)
		if err != nil {
			return err
		}
		p, err := c.Reserve(2 * unit)
		if err != nil {
			return err
		}
		for at := p; at < p+cuda.Ptr(2*unit); at += cuda.Ptr(unit) {
			h, err := c.Create(unit, cuda.PosixFD)
			if err := errors.Join(err, c.Map(at, unit, h), c.SetAccess(at, unit, true), c.Release(h)); err != nil {
				return err
			}
		}
		err = errors.Join(fill(c, b.s, p, 2*unit, 7), holds(c, b.s, p+cuda.Ptr(unit)-1000, 2000, 7))
		second, err2 := cuda.Export(c, p+cuda.Ptr(unit)+10, 10, cuda.PosixFD)
		if err2 == nil {
			if second.Offset != 10 || second.Size != unit {
				err2 = fmt.Errorf("exported with offset %d of %d", second.Offset, second.Size)
			}
			err2 = errors.Join(err2, second.Close(c))
		}
		_, both := cuda.Export(c, p+cuda.Ptr(unit)-10, 20, cuda.PosixFD)
		return errors.Join(err, err2,
			refuses("exporting across two allocations", both),
			c.Unmap(p, unit), c.Unmap(p+cuda.Ptr(unit), unit), c.FreeAddress(p, 2*unit))
	})
}

func testNowhere(b *bench) {
	null, err := os.Open("/dev/null")
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	b.do(func(c cuda.Context) error {
		var err error
		for _, s := range []cuda.Shared{
			{Kind: cuda.PosixFD, FD: 1 << 20, Size: size},
			{Kind: cuda.PosixFD, FD: int(null.Fd()), Size: size},
			{Kind: cuda.Fabric, Size: size},
			{Kind: cuda.PosixFD | cuda.Fabric, Size: size},
			{Kind: cuda.PosixFD, FD: int(null.Fd())},
		} {
			if s.Kind != cuda.PosixFD {
				rand.Read(s.Bytes[:])
			}
			m, refused := cuda.Import(c, s, true)
			if m != nil {
				err = errors.Join(err, m.Close(c))
			}
			err = errors.Join(err, refuses(fmt.Sprintf("importing %s, %d bytes", s.Kind, s.Size), refused))
		}
		return errors.Join(err, warm(c, b.s))
	})
}

func testClosed(b *bench) {
	dev, err := b.Driver.Open(0)
	if err != nil {
		b.Fatal(err)
	}
	if err := dev.Close(); err != nil {
		b.Fatal(err)
	}
	if err := dev.Close(); err != nil {
		b.Errorf("closing twice answers %v", err)
	}
	ran := false
	err = dev.Do(func(cuda.Context) error { ran = true; return nil })
	if !errors.Is(err, cuda.ErrClosed) || ran {
		b.Errorf("a closed device answers %v, and has run: %v", err, ran)
	}
	// The other one of the same device is open still.
	b.do(func(c cuda.Context) error { return c.SyncStream(b.s) })
}
