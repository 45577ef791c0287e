package agentapi

import (
	"encoding/json"

	"github.com/berth-dev/berth/pkg/strictjson"
)

// decode is the JSON value of a body, or its faults, as read says.
func decode[T any](body []byte) (v T, err error) {
	if err := strictjson.CheckAround(body, "result", "schema"); err != nil {
		return v, err
	}
	if err := json.Unmarshal(body, &v); err != nil {
		return v, decodeFault(err)
	}
	return v, nil
}
