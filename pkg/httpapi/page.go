package httpapi

import (
	"encoding/base64"

	"github.com/berth-dev/berth/pkg/berth"
	"github.com/berth-dev/berth/pkg/store"
)

// pageOf reads a page request. A token is the cursor in base64, so that nobody
// builds on what it says; valid judges the cursor.
func pageOf(size PageSize, token PageToken, valid func(string) bool) (store.Page, error) {
	if size == 0 {
		size = 50
	}
	page := store.Page{Size: size}
	if token == "" {
		return page, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || !valid(string(raw)) {
		return page, berth.Invalid("page_token", "is not a page token of this list", "use next_page_token of the page before, or leave it out for the first page")
	}
	page.After = string(raw)
	return page, nil
}

func pageToken(cursor string) string {
	if cursor == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(cursor))
}
