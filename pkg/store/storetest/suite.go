package storetest

import "testing"

// check is one promise of the contract.
type check struct {
	name string
	run  func(t *testing.T, h Harness)
}

// Run runs the whole suite against an engine. Subtests run in parallel, as many
// as -parallel allows, each on a database of its own.
func Run(t *testing.T, h Harness) {
	groups := []struct {
		name   string
		checks []check
	}{
		{"Submit", submitChecks()},
		{"List", listChecks()},
		{"Cancel", cancelChecks()},
		{"Retry", retryChecks()},
		{"DeadLetter", deadLetterChecks()},
		{"Bulk", bulkChecks()},
		{"Enrol", append(enrolChecks(), enrolHostileChecks()...)},
		{"HostKeys", hostKeyChecks()},
		{"Sync", append(syncChecks(), hardwareChecks()...)},
		{"Heartbeat", heartbeatChecks()},
		{"Claim", claimChecks()},
		{"Start", startChecks()},
		{"Renew", renewChecks()},
		{"Complete", completeChecks()},
		{"Many", manyChecks()},
		{"Release", releaseChecks()},
		{"Upload", uploadChecks()},
		{"Input", inputChecks()},
		{"Secret", secretChecks()},
		{"Schedule", scheduleChecks()},
		{"Placement", placementChecks()},
		{"Promote", promoteChecks()},
		{"GiveUp", giveUpChecks()},
		{"Reap", append(reapChecks(), reapOrderChecks()...)},
		{"Amnesty", amnestyChecks()},
		{"Sweep", sweepChecks()},
		{"Order", orderChecks()},
		{"Audit", auditChecks()},
		{"Fleet", fleetChecks()},
		{"Operators", operatorChecks()},
		{"Plugins", pluginChecks()},
		{"Health", healthChecks()},
		{"Contract", contractChecks()},
		{"Accounts", accountChecks()},
		{"Sessions", sessionChecks()},
		{"UserAdmin", userAdminChecks()},
		{"APIKeys", apiKeyChecks()},
		{"SigningKeys", signingKeyChecks()},
		{"Sealed", sealedChecks()},
		{"Guesses", guessChecks()},
		{"Hints", hintChecks()},
		{"Atomic", atomicChecks()},
		{"Race", raceChecks()},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.checks {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(t, h)
				})
			}
		})
	}
	everyActionIsWritten(t)
}

// in makes a check of a function that works on a world.
func in(name string, run func(w *world)) check {
	return check{name, func(t *testing.T, h Harness) { run(newWorld(t, h)) }}
}
