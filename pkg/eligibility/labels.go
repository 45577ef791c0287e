package eligibility

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/pkg/berth"
)

// CheckLabels notes every fault of a set of labels under path: what it lets
// through, a selector can ask for.
func CheckLabels(path string, labels map[string]string, f *berth.Faults) {
	if len(labels) > berth.MaxLabels {
		f.Add(path, fmt.Sprintf("%d labels", len(labels)), fmt.Sprintf("send at most %d", berth.MaxLabels))
		return
	}
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		value := labels[key]
		if len(validation.IsQualifiedName(key)) > 0 {
			f.Add(path, fmt.Sprintf("%q is no label's name", berth.Clip(key, 40)), "use letters, digits, - _ . and at most one prefix, such as browser or example.com/rack")
		} else if len(validation.IsValidLabelValue(value)) > 0 {
			f.Add(path+"."+key, "it is no label's value", "use at most 63 letters, digits, - _ .")
		}
	}
}
