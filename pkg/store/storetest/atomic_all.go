package storetest

import (
	"reflect"
	"slices"
	"testing"

	"github.com/berth-dev/berth/pkg/store"
)

// readers are the operations that change nothing: all others are broken off at
// each of their statements.
var readers = []string{
	"GetTask", "ListTasks", "ListDeadLetters", "PreviewBulk", "GetBulk", "ListBulk", "SubmittedTasks", "ListAttempts", "ListArtifacts", "GetArtifact", "ReadLog", "PlacementFacts",
	"CheckUpload", "AttemptInput", "HostKeys", "SchedulablePools", "LastAmnesty", "UnknownBlobs",
	"GetPool", "ListPools", "GetDevice", "ListDevices", "GetHost", "ListHosts", "ListEnrolments", "ListPlugins", "PluginVersions",
	"OpenInput", "GetInput", "ListInputs", "InputParts", "GetSecret", "ListSecrets", "GetSchedule", "ListSchedules", "ListFires", "SealedValues",
	"UserByName", "UserByID", "SessionUser", "ListUsers", "ListAPIKeys", "SigningKeys", "ListAudit", "SearchAudit",
	"Ping", "SchemaVersion", "Now", "Subscribe", "Close",
}

// everyWriterIsBrokenOff: an operation that is new in the contract is either
// broken off by atomicChecks or said to change nothing.
func everyWriterIsBrokenOff(t *testing.T, _ Harness) {
	broken := map[string]bool{}
	for _, op := range operations() {
		broken[op.name] = true
	}
	contract := reflect.TypeFor[store.Store]()
	for i := range contract.NumMethod() {
		name := contract.Method(i).Name
		if broken[name] == slices.Contains(readers, name) {
			t.Errorf("%s: give it a row among the operations of atomicChecks, or, if it changes nothing, a place among the readers; not both", name)
		}
	}
	for _, name := range readers {
		if _, ok := contract.MethodByName(name); !ok {
			t.Errorf("the contract has no operation %s", name)
		}
	}
}
