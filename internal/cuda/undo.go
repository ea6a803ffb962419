package cuda

import "errors"

// undo is what has to be given back, in reverse. A step that the driver
// refuses stays, with those before it, for the next try: nothing is forgotten.
type undo []func(Context) error

func (u *undo) add(f func(Context) error) { *u = append(*u, f) }

func (u *undo) run(c Context) error {
	for len(*u) > 0 {
		last := len(*u) - 1
		if err := (*u)[last](c); err != nil {
			return err
		}
		*u = (*u)[:last]
	}
	return nil
}

// failed undoes after a failure. What remains is the caller's to close.
func (u *undo) failed(c Context, err error) error { return errors.Join(err, u.run(c)) }
