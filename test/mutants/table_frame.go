package main

// frames are the guards of what arrives as bytes.
var frames = []mutant{
	{"frame: version", "engine/internal/frame/frame.go",
		"\tcase b[4] != Version:\n\t\treturn Header{}, nil, ErrVersion\n",
		"", "engine/internal/frame", "TestMalformedHeadersAreRejected", false},
	{"frame: type", "engine/internal/frame/frame.go",
		"b[5] < 1 || b[5] > lastType",
		"b[5] < 1", "engine/internal/frame", "TestMalformedHeadersAreRejected", false},
	{"frame: flags", "engine/internal/frame/frame.go",
		"\tcase le.Uint16(b[6:])&^NeedsAck != 0:\n\t\treturn Header{}, nil, ErrFlags\n",
		"", "engine/internal/frame", "TestMalformedHeadersAreRejected", false},
	{"frame: length is exact", "engine/internal/frame/frame.go",
		"uint64(le.Uint32(b[40:])) != uint64(len(b)-HeaderSize)",
		"uint64(le.Uint32(b[40:])) > uint64(len(b)-HeaderSize)", "engine/internal/frame", "TestMalformedHeadersAreRejected", false},
	{"frame: raw is exact", "engine/internal/frame/frame.go",
		"!ok || exact && len(rest) != 0",
		"!ok", "engine/internal/frame", "TestRawBounds", false},
	{"frame: most ranges of an ack", "engine/internal/frame/ack.go",
		"n > MaxRanges || ",
		"", "engine/internal/frame", "TestHostileAcks", false},
	{"frame: ranges ascend", "engine/internal/frame/ack.go",
		"first <= end || ",
		"", "engine/internal/frame", "TestHostileAcks", false},
	{"frame: ranges do not wrap", "engine/internal/frame/ack.go",
		" || first+count-1 < first",
		"", "engine/internal/frame", "TestHostileAcks", false},
}
