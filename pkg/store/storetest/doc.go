// Package storetest is the conformance suite of the storage contract: every
// promise of pkg/store's doc comments is a named subtest here, and every engine
// runs all of them. It is written from the contract alone and imports no
// engine.
//
// An engine's test file gives a [Harness] and calls [Run] and [RunMachine]:
//
//	func harness() storetest.Harness {
//		return storetest.Harness{
//			Name: "sqlite", Serial: true,
//			Fresh: func(tb testing.TB) storetest.Database {
//				path := filepath.Join(tb.TempDir(), "berth.db") // migrate it here
//				return func(_ testing.TB, opts store.Options) (store.Store, error) {
//					return sqlite.Open(context.Background(), path, opts)
//				}
//			},
//		}
//	}
//
//	func TestConformance(t *testing.T) { storetest.Run(t, harness()) }
//	func TestMachine(t *testing.T)     { storetest.RunMachine(t, harness()) }
//
// Each subtest has a database of its own, an injected clock that stands still
// until the test moves it, and a journal of all transitions and errors that the
// engine returned. When a subtest ends, the journal is compared with the audit
// trail, content markers are looked for in both, and the promises I1, I9 and
// I15 of the design are checked on whatever state the subtest left.
package storetest
