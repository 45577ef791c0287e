// Package external makes plugins of programs that live beside Berth, in any
// language: each is a folder with a plugin.json, and each of its runs is a
// process that gets one JSON document on its standard input and tells what
// happens in JSON lines on its standard output. docs/plugins.md is the protocol.
//
// What such a program does, its run ends as documented: it is killed with all
// that it started, what it writes is bounded in memory and on disk, and no word
// of it is taken into an error or a message but the message that it gives.
package external
