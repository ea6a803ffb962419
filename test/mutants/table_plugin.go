package main

// plugins are the guards around plugin processes.
var plugins = []mutant{}
