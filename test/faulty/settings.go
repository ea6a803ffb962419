package main

import (
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// settings is the setting faults.
type settings struct {
	Seed    uint64 `json:"seed"`
	Control string `json:"control"`
	faultSet
}

// faultSet is sdktest.Faults as JSON.
type faultSet struct {
	Send          frameFaults `json:"send"`
	Receive       frameFaults `json:"receive"`
	DropIsUnknown bool        `json:"drop_is_unknown"`
	NotPosted     float64     `json:"not_posted"`
	Unknown       float64     `json:"unknown"`
	MaxDelayMS    int         `json:"max_delay_ms"`
	CrashAfter    int         `json:"crash_after"`
	HangAfter     int         `json:"hang_after"`
}

type frameFaults struct {
	Drop    float64 `json:"drop"`
	Double  float64 `json:"double"`
	Delay   float64 `json:"delay"`
	Reorder float64 `json:"reorder"`
}

func (s faultSet) faults() sdktest.Faults {
	return sdktest.Faults{
		Send: sdktest.FrameFaults(s.Send), Receive: sdktest.FrameFaults(s.Receive),
		DropIsUnknown: s.DropIsUnknown, NotPosted: s.NotPosted, Unknown: s.Unknown,
		MaxDelay: time.Duration(s.MaxDelayMS) * time.Millisecond, CrashAfter: s.CrashAfter, HangAfter: s.HangAfter,
	}
}

// check is for what did not come through the engine, which checks the schema.
func (s faultSet) check() error {
	for _, p := range []float64{
		s.Send.Drop, s.Send.Double, s.Send.Delay, s.Send.Reorder,
		s.Receive.Drop, s.Receive.Double, s.Receive.Delay, s.Receive.Reorder, s.NotPosted, s.Unknown,
	} {
		if p < 0 || p > 1 {
			return sdk.Errorf(sdk.InvalidArgument, "faults: a probability is %v, must be 0 to 1", p)
		}
	}
	for _, n := range []int{s.MaxDelayMS, s.CrashAfter, s.HangAfter} {
		if n < 0 {
			return sdk.Errorf(sdk.InvalidArgument, "faults: %d is negative", n)
		}
	}
	return nil
}
