package problem

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"
	"go.uber.org/zap"

	"github.com/berth-dev/berth/pkg/protocol"
)

// Handler is the error handler of both APIs: it answers with the document of
// the error. An unknown error is logged once, with its request id, and so is a
// full storage, which an operator has to mend. When the answer has begun,
// nothing is written any more.
func Handler(logger *zap.Logger) echo.HTTPErrorHandler {
	return func(err error, c echo.Context) {
		if err == nil || c.Response().Committed {
			return
		}
		d := Of(err)
		d.RequestID = c.Response().Header().Get(echo.HeaderXRequestID)
		if d.Unknown {
			logger.Error("request failed",
				zap.String("request_id", d.RequestID),
				zap.String("method", c.Request().Method),
				zap.String("route", c.Path()),
				zap.String("error", loggable(err)))
		}
		if d.Code == protocol.CodeStorageFull {
			logger.Error("the storage for artifacts and logs is full: free space in BERTH_BLOB_DIR, or raise the quota of the bucket in BERTH_BLOBS",
				zap.String("request_id", d.RequestID), zap.String("route", c.Path()))
		}
		if d.Code == protocol.CodeStorageUnavailable {
			logger.Error("the object store cannot be used",
				zap.String("request_id", d.RequestID), zap.String("route", c.Path()), zap.String("error", loggable(err)))
		}
		if d.Code == protocol.CodeInputLost {
			logger.Error("an input's bytes are gone from the blob store: have the file uploaded again, and look for the cause",
				zap.String("request_id", d.RequestID), zap.String("route", c.Path()), zap.String("error", loggable(err)))
		}
		Write(c.Response(), c.Request().Method, d)
	}
}

// loggable is an error's own text; echo's wrapper would add the message that a
// client could have caused.
func loggable(err error) string {
	var routing *echo.HTTPError
	if errors.As(err, &routing) {
		if routing.Internal != nil {
			return routing.Internal.Error()
		}
		return "status " + strconv.Itoa(routing.Code)
	}
	return err.Error()
}

// Write answers with d. To HEAD it sends the headers alone.
func Write(w http.ResponseWriter, method string, d Document) {
	if d.Type == "" {
		d.Type = "about:blank"
	}
	h := w.Header()
	h.Set(echo.HeaderContentType, ContentType)
	h.Set("Cache-Control", "no-store")
	if d.RetryAfter <= 0 && (d.Status == http.StatusTooManyRequests || d.Status == http.StatusServiceUnavailable) {
		d.RetryAfter = time.Second
	}
	if d.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(seconds(d.RetryAfter)))
	}
	if d.Status == http.StatusUnauthorized {
		h.Set(echo.HeaderWWWAuthenticate, "Bearer")
	}
	w.WriteHeader(d.Status)
	if method == http.MethodHead {
		return
	}
	// The client may have gone; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(d.Problem)
}

// seconds rounds up, so that nobody comes back too early.
func seconds(d time.Duration) int { return int(math.Ceil(d.Seconds())) }
