package freeze

import "testing"

// Of a freeze that fell out of the history it is not known how long it was: all
// that began before its end contains it.
func TestAFreezeOutOfTheHistoryCounts(t *testing.T) {
	var d Detector
	for i := range 3 * remembered {
		d.Tick(at(i * 1000))
	}
	if !d.Within(at(500), at(600)) {
		t.Error("the first freeze is forgotten")
	}
}
