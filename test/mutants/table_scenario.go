package main

// scenarios are guards that the scenarios, with real processes, have to miss,
// too: what their tests look for does come without them.
var scenarios = []mutant{
	{"scenario: fence at the target", "engine/move_fence.go",
		"m.fenced(ch, remote, m.fenceThere(ch))",
		"m.fenced(ch, remote, nil)", "test/scenarios", "TestMemoryAfterAnOpHasEndedItsDestinationIsTheOwners", false},
	{"scenario: local fence", "engine/move_timer.go",
		"\t\tif m.overdueLocked(ch, now) {\n\t\t\tm.closeLocked(ch)\n",
		"\t\tif m.overdueLocked(ch, now) {\n\t\t\tm.endedLocked(ch, nil, true)\n", "test/scenarios", "TestMemoryAfterAnOpHasEndedItsDestinationIsTheOwners", false},
	{"scenario: the new descriptor counts", "engine/segment_source.go",
		"\ts.desc, s.newest = d, max(s.newest, d.Version)\n",
		"\tif s.newest = max(s.newest, d.Version); s.desc == nil {\n\t\ts.desc = d\n\t}\n",
		"test/scenarios", "TestMemoryAWithdrawnRegionAtTheSameAddress", false},
	{"scenario: a dead provider's memory is given back", "engine/segment_source.go",
		"\t\t\ts.takeBack(inst, sdk.Capability{})\n",
		"\t\t\t_ = inst\n", "test/scenarios", "TestMemoryOfAProviderThatIsGone", false},
	{"scenario: an op waits for its event", "engine/move_channel.go",
		", o.localOffset+c.span.Offset, o.event",
		", o.localOffset+c.span.Offset, nil", "test/scenarios", "TestGPUMemoryIsSentAfterItsEvent", false},
}
