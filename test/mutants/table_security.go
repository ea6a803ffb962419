package main

// securities are the guards of keys and of who may listen and call.
var securities = []mutant{}
