package httpserver

import "time"

// DecodingCost is decodingCost.
var DecodingCost = decodingCost

// Within has requests wait so long for room.
func (b *Bodies) Within(d time.Duration) *Bodies {
	b.within = d
	return b
}
