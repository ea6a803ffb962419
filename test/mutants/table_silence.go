package main

// silences are the guards around peers that do not answer and freezes of
// this process.
var silences = []mutant{}
