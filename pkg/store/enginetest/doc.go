// Package enginetest holds no code of Berth's: its tests run random sequences
// of operations on both engines and compare all that can be seen after each
// step. It is the one place that imports both.
package enginetest
